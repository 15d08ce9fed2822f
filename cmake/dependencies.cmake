# Every dependency: the system's package when it is there, else a pinned release, fetched.
#
# Each becomes a target gradual_dep_NAME to link with. Header-only ones are linked as $<BUILD_INTERFACE:...> and never
# reach the exported package. {fmt} and zlib are compiled: a system's package is named in gradualConfig.cmake
# (GRADUAL_EXPORTED_DEPENDENCIES); a fetched {fmt} is used header-only and a fetched zlib is compiled into our library
# under a prefix, so that the exported package then needs neither.

include(FetchContent)
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)  # so that a project which holds us by add_subdirectory sees fmt::fmt too
set(THREADS_PREFER_PTHREAD_FLAG ON)
set(GRADUAL_EXPORTED_DEPENDENCIES "")

# gradual_fetch(NAME URL SHA256): unpacks a release, builds nothing, sets NAME_dir.
function(gradual_fetch name url sha256)
  message(STATUS "gradual: ${name} not found on this system, fetching ${url}")
  # No such subdirectory, so MakeAvailable only unpacks.
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP ON
                       SOURCE_SUBDIR gradual-builds-it)
  FetchContent_MakeAvailable(${name})
  FetchContent_GetProperties(${name} SOURCE_DIR dir)
  set(${name}_dir ${dir} PARENT_SCOPE)
endfunction()

# gradual_header_only(NAME TARGET SUBDIR URL SHA256 package...): "package..." are find_package's arguments.
function(gradual_header_only name target subdir url sha256)
  if(TARGET gradual_dep_${name})
    return()
  endif()
  add_library(gradual_dep_${name} INTERFACE)
  if(NOT TARGET ${target})
    find_package(${ARGN} QUIET)
  endif()
  if(TARGET ${target})
    target_link_libraries(gradual_dep_${name} INTERFACE ${target})
  else()
    gradual_fetch(${name} ${url} ${sha256})
    target_include_directories(gradual_dep_${name} SYSTEM INTERFACE ${${name}_dir}/${subdir})
  endif()
endfunction()

find_package(Threads REQUIRED)
list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "Threads")

set(GRADUAL_HAVE_OPENMP OFF)
if(NOT GRADUAL_OPENMP STREQUAL "OFF")
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(TARGET OpenMP::OpenMP_CXX)
    set(GRADUAL_HAVE_OPENMP ON)
    list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "OpenMP COMPONENTS CXX")
  elseif(NOT GRADUAL_OPENMP STREQUAL "AUTO")
    message(FATAL_ERROR "gradual: GRADUAL_OPENMP is ${GRADUAL_OPENMP}, but no OpenMP was found for "
                        "${CMAKE_CXX_COMPILER}. Install it (with clang: libomp) or say -DGRADUAL_OPENMP=OFF.")
  endif()
endif()

# oneDNN gets the number of threads of a primitive through OpenMP, nearly always one. Never fetched: it builds an hour.
set(GRADUAL_HAVE_ONEDNN OFF)
if(NOT GRADUAL_ONEDNN STREQUAL "OFF" AND GRADUAL_HAVE_OPENMP)
  find_package(oneDNN 2.6...<4 QUIET)
  if(oneDNN_FOUND)
    set(GRADUAL_HAVE_ONEDNN ON)
    string(REGEX MATCH "^[0-9]+" major "${oneDNN_VERSION}")
    math(EXPR next "${major} + 1")
    list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "oneDNN ${oneDNN_VERSION}...<${next}")
    message(STATUS "gradual: oneDNN ${oneDNN_VERSION} (${oneDNN_LIBRARY})")
  endif()
endif()
if(GRADUAL_ONEDNN STREQUAL "ON" AND NOT GRADUAL_HAVE_ONEDNN)
  message(FATAL_ERROR "gradual: GRADUAL_ONEDNN is ON, but there is no oneDNN 2.6 to 3 with OpenMP (found: "
                      "\"${oneDNN_VERSION}\"; OpenMP: ${GRADUAL_HAVE_OPENMP}). Install it (Debian: libdnnl-dev) and "
                      "OpenMP, or say -DGRADUAL_ONEDNN=OFF.")
endif()

# Any MPI 3; by default the one that mpicxx belongs to (-DMPI_CXX_COMPILER=mpicxx.mpich names another).
set(GRADUAL_HAVE_MPI OFF)
if(NOT GRADUAL_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI 3 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND AND TARGET MPI::MPI_CXX)
    set(GRADUAL_HAVE_MPI ON)
    list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "MPI 3 COMPONENTS CXX")
  elseif(GRADUAL_MPI STREQUAL "ON")
    message(FATAL_ERROR "gradual: GRADUAL_MPI is ON, but there is no MPI 3 for C++. Install one (Debian: libopenmpi-dev "
                        "or libmpich-dev), or say -DGRADUAL_MPI=OFF.")
  endif()
endif()

# libzip reads the archives of torch.export.save (pt2/). Without it they are refused by an error that says so.
set(GRADUAL_HAVE_ZIP OFF)
find_package(libzip QUIET MODULE)
if(libzip_FOUND)
  set(GRADUAL_HAVE_ZIP ON)
  list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "libzip MODULE")
else()
  message(STATUS "gradual: no libzip (Debian: libzip-dev): .pt2 files of PyTorch cannot be read")
endif()

gradual_header_only(eigen Eigen3::Eigen "."
  https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz
  8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72
  Eigen3 3.4 CONFIG)
gradual_header_only(json nlohmann_json::nlohmann_json include
  https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
  d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d
  nlohmann_json 3.10 CONFIG)

if(NOT TARGET gradual_dep_fmt)
  add_library(gradual_dep_fmt INTERFACE)
  if(NOT TARGET fmt::fmt)
    find_package(fmt 9 CONFIG QUIET)
  endif()
  if(TARGET fmt::fmt)
    target_link_libraries(gradual_dep_fmt INTERFACE fmt::fmt)
    set(GRADUAL_SYSTEM_FMT ON)
    list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "fmt CONFIG")
  else()
    gradual_fetch(fmt https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz
                  1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811)
    target_include_directories(gradual_dep_fmt SYSTEM INTERFACE ${fmt_dir}/include)
    target_compile_definitions(gradual_dep_fmt INTERFACE FMT_HEADER_ONLY=1)
  endif()
endif()

if(NOT TARGET gradual_dep_zlib)
  add_library(gradual_dep_zlib INTERFACE)
  find_package(ZLIB QUIET)
  if(TARGET ZLIB::ZLIB)
    target_link_libraries(gradual_dep_zlib INTERFACE ZLIB::ZLIB)
    set(GRADUAL_SYSTEM_ZLIB ON)
    list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "ZLIB")
  else()
    enable_language(C)
    gradual_fetch(zlib https://github.com/madler/zlib/releases/download/v1.3.1/zlib-1.3.1.tar.gz
                  9a93b2b7dfdac77ceba5a558a580e74667dd6fede4585b91eefb60f03b72df23)
    file(GLOB zlib_sources ${zlib_dir}/*.c)
    # Z_PREFIX calls every symbol z_...: no clash with another zlib in the program.
    add_library(gradual_zlib_objects OBJECT ${zlib_sources})
    target_compile_definitions(gradual_zlib_objects PRIVATE Z_PREFIX Z_HAVE_UNISTD_H)
    target_compile_options(gradual_zlib_objects PRIVATE -w)
    set_target_properties(gradual_zlib_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(gradual_dep_zlib SYSTEM INTERFACE ${zlib_dir})
    target_compile_definitions(gradual_dep_zlib INTERFACE Z_PREFIX)
  endif()
endif()

if(GRADUAL_BUILD_LAB)
  gradual_header_only(cli11 CLI11::CLI11 include
    https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.3.2.tar.gz
    aac0ab42108131ac5d3344a9db0fdf25c4db652296641955720a4fbe52334e22
    CLI11 2.1 CONFIG)
endif()

# Without doctest, here or by the network, all but the tests is built.
if(GRADUAL_BUILD_TESTS)
  set(doctest_url https://github.com/doctest/doctest/archive/refs/tags/v2.4.11.tar.gz)
  if(NOT TARGET doctest::doctest)
    find_package(doctest 2.4.9 CONFIG QUIET)
  endif()
  set(doctest_status 0)
  if(NOT TARGET doctest::doctest AND NOT FETCHCONTENT_SOURCE_DIR_DOCTEST AND NOT FETCHCONTENT_FULLY_DISCONNECTED)
    file(DOWNLOAD ${doctest_url} ${CMAKE_BINARY_DIR}/_deps/doctest.tar.gz STATUS doctest_status TIMEOUT 60)
    set(doctest_url ${CMAKE_BINARY_DIR}/_deps/doctest.tar.gz)
  endif()
  list(GET doctest_status 0 doctest_failed)
  if(doctest_failed)
    message(WARNING "gradual: doctest is not on this system (Debian: doctest-dev) and could not be fetched "
                    "(${doctest_status}). The tests are not built; all else is.")
    set(GRADUAL_BUILD_TESTS OFF)
  else()
    gradual_header_only(doctest doctest::doctest "." ${doctest_url}
      632ed2c05a7f53fa961381497bf8069093f0d6628c5f26286161fbd32a560186
      doctest 2.4.9 CONFIG)
  endif()
endif()

if(GRADUAL_BUILD_BENCH)
  if(NOT TARGET benchmark::benchmark)
    find_package(benchmark 1.7 CONFIG QUIET)
  endif()
  if(NOT TARGET benchmark::benchmark)
    message(STATUS "gradual: Google Benchmark not found on this system, fetching 1.8.3")
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    set(BENCHMARK_ENABLE_WERROR OFF)
    FetchContent_Declare(benchmark URL https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
      URL_HASH SHA256=6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce
      DOWNLOAD_EXTRACT_TIMESTAMP ON SYSTEM)
    FetchContent_MakeAvailable(benchmark)
  endif()
endif()
