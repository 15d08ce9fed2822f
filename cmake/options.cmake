# Options, compiler flags and the function that applies them to Gradual's targets.

option(GRADUAL_NATIVE "Compile only for the building machine (-march=native), without a choice at run time" OFF)
option(GRADUAL_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(GRADUAL_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(GRADUAL_BUILD_LAB "Build the program gradual-lab" ${PROJECT_IS_TOP_LEVEL})
option(GRADUAL_BUILD_BENCH "Build the benchmarks (needs Google Benchmark)" OFF)
option(GRADUAL_CCACHE "Compile through ccache when it is found" ${PROJECT_IS_TOP_LEVEL})
option(GRADUAL_BATCHES "Compile small sources in batches (cmake/batches.cmake); OFF: each file alone" ON)
option(GRADUAL_PRECOMPILE "Precompile headers of the standard library, {fmt} and doctest (g++ only)" ON)
option(GRADUAL_UPPER_FOLDERS "Build inspect, dist, pt2 and lab into the library; without them only for a quick build of one program" ON)
option(GRADUAL_HARDEN "Harden optimised builds: stack protector, _FORTIFY_SOURCE, full RELRO, PIE" ON)
option(GRADUAL_FAST "Build the fast kernels for particular processors (core/cpu/fast)" ON)
set(GRADUAL_OPENMP AUTO CACHE STRING "OpenMP, which oneDNN needs: AUTO (when found), ON (required), OFF")
set(GRADUAL_ONEDNN AUTO CACHE STRING "oneDNN as the fast CPU backend: AUTO (when found), ON (required), OFF")
set(GRADUAL_MPI AUTO CACHE STRING "MPI, for several processes: AUTO (when found), ON (required), OFF")
set(GRADUAL_CUDA AUTO CACHE STRING
    "CUDA: AUTO (if there is a GPU), ON (required), OFF, EMULATED (kernels on the CPU, for tests)")
set(GRADUAL_GDB_PRINTERS SOURCE CACHE STRING
    "Where gdb finds the printers: SOURCE (this source tree) or INSTALLED (share/gdb/auto-load of the install prefix)")
set(GRADUAL_SANITIZE "" CACHE STRING "Sanitizers, comma-separated: \"address,undefined\" or \"thread\"")
set_property(CACHE GRADUAL_OPENMP GRADUAL_ONEDNN GRADUAL_MPI GRADUAL_CUDA PROPERTY STRINGS AUTO ON OFF)
set_property(CACHE GRADUAL_GDB_PRINTERS PROPERTY STRINGS SOURCE INSTALLED)
set_property(CACHE GRADUAL_CUDA APPEND PROPERTY STRINGS EMULATED)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# As part of a project without a build type the library is optimised all the same.
set(GRADUAL_DEFAULT_OPTIMIZATION "")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(GRADUAL_DEFAULT_OPTIMIZATION -O3 -DNDEBUG)
  message(STATUS "gradual: no CMAKE_BUILD_TYPE; compiled with -O3. Debug is for stepping through it.")
endif()

# ccache: paths relative to the top and no hash of the working directory, so that several checkouts share hits. Debug
# information holds that directory, and a debugger looks there for the sources: builds for debugging hash it.
set(GRADUAL_FOUND_CCACHE OFF)
if(GRADUAL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(GRADUAL_CCACHE_PROGRAM ccache)
  mark_as_advanced(GRADUAL_CCACHE_PROGRAM)
  if(GRADUAL_CCACHE_PROGRAM)
    set(GRADUAL_FOUND_CCACHE ON)
    # what ccache wants for precompiled headers: a macro that one defines has its value in each file, and none is a time
    set(sloppiness pch_defines,time_macros)
    if(NOT "$ENV{CCACHE_SLOPPINESS}" STREQUAL "")
      string(APPEND sloppiness ",$ENV{CCACHE_SLOPPINESS}")
    endif()
    set(shared CCACHE_NOHASHDIR=1)
    if(CMAKE_BUILD_TYPE MATCHES "Deb" AND NOT GRADUAL_SANITIZE)
      set(shared "")
    endif()
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env ${shared} CCACHE_SLOPPINESS=${sloppiness}
        CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${GRADUAL_CCACHE_PROGRAM})
  endif()
endif()

# Sanitizers cover everything in the build, fetched dependencies included.
if(GRADUAL_SANITIZE)
  add_compile_options(-fsanitize=${GRADUAL_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${GRADUAL_SANITIZE})
  if(GRADUAL_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX)  # so that POSITION_INDEPENDENT_CODE reaches the linker too

# What makes a memory error end the program instead of running an attacker's code. No bit of a result depends on it. The
# sanitizers check more themselves.
function(gradual_harden target)
  if(NOT GRADUAL_HARDEN OR GRADUAL_SANITIZE OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    return()
  endif()
  set(optimised $<OR:$<CONFIG:Release>,$<CONFIG:RelWithDebInfo>,$<CONFIG:MinSizeRel>,$<CONFIG:>>)
  # the system's compiler may define it already
  target_compile_options(${target} PRIVATE
    "$<$<AND:${optimised},$<COMPILE_LANGUAGE:CXX>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2;-fstack-protector-strong>")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_options(${target} PRIVATE LINKER:-z,relro LINKER:-z,now)
  endif()
endfunction()

# -ffp-contract=off: a product and a sum round twice unless std::fma is written; one can see what every bit did.
# -fno-math-errno and -fno-trapping-math change no result, they only let loops vectorise. Never -ffast-math.
# -fno-semantic-interposition lets g++ inline the functions of position-independent code into one another, as clang
# does. -march=native is the same for all targets here: inline code of one program must not be compiled in two ways.
function(gradual_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE ${GRADUAL_DEFAULT_OPTIMIZATION}
    -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-semantic-interposition
    -Wall -Wextra -Wpedantic -Wshadow
    $<$<BOOL:${GRADUAL_NATIVE}>:-march=native>
    $<$<NOT:$<BOOL:${GRADUAL_HAVE_OPENMP}>>:-Wno-unknown-pragmas>
    # g++ 12 miscompiles constant vectors that straight-line code is merged into: with AVX-512VL, stores of the doubles
    # 1, 1, 0, 0 became a broadcast of 1 (seen with 12.2 at -O2 and -O3). Loops are vectorised all the same.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-fno-tree-slp-vectorize>
    # g++ 12 reports false positives inside Eigen and libstdc++ once it has inlined them
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  target_compile_definitions(${target} PRIVATE EIGEN_DONT_PARALLELIZE EIGEN_MPL2_ONLY)
  gradual_harden(${target})
endfunction()

# gradual_precompile(TARGET HEADER...): precompiles these headers. STANDARD stands for those of the standard library and
# {fmt}, which the target must link. Of the project's own only the public one, for sources that include it anyway: when a
# header changes, each file that reads it precompiled is compiled again. A source still includes what it uses.
# gradual_precompile(TARGET REUSE_FROM OTHER) shares those of another target, which has the same definitions.
# clang's precompiled headers hold times, which a compiler cache does not find again.
function(gradual_precompile target)
  if(NOT GRADUAL_PRECOMPILE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  # g++ 12 reports false positives inside precompiled headers, which it reads without these
  target_compile_options(${target} PRIVATE -Wno-stringop-overflow -Wno-array-bounds)
  if("${ARGV1}" STREQUAL "REUSE_FROM")
    target_precompile_headers(${target} REUSE_FROM ${ARGV2})
    return()
  endif()
  set(standard algorithm array atomic bit chrono cmath cstdint cstring filesystem functional limits map memory mutex
      numeric optional set span sstream string string_view tuple type_traits unordered_map utility variant vector)
  # Without optimisation {fmt} switches it on for its own functions. g++ forgets the end of that in a precompiled header,
  # compiles all that follows with -Og, and fails in Eigen.
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  if("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}" MATCHES "-O[1-9gsf]")
    list(APPEND standard fmt/format.h)
  endif()
  set(headers ${ARGN})
  list(TRANSFORM headers REPLACE "^STANDARD$" "${standard}")
  list(TRANSFORM headers REPLACE "(.+)" "<\\1>")
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()

# gradual_program(NAME SOURCE...): a program that includes <gradual/gradual.h>. The library does its work, so it is
# optimised as ${cold_options} says, and the header is precompiled once for all such programs of a build tree. Not in
# Debug, where one program is built at a time and the header would cost more.
function(gradual_program name)
  add_executable(${name} ${ARGN})
  gradual_options(${name})
  target_compile_options(${name} PRIVATE ${cold_options})
  target_link_libraries(${name} PRIVATE gradual)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT GRADUAL_SANITIZE)
    return()
  endif()
  if(NOT TARGET gradual_public_header)
    set(source ${PROJECT_BINARY_DIR}/public_header.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "// Its target has the precompiled public header.\n")
    add_library(gradual_public_header OBJECT ${source})
    gradual_options(gradual_public_header)
    get_target_property(independent ${name} POSITION_INDEPENDENT_CODE)
    target_compile_options(gradual_public_header PRIVATE ${cold_options} $<$<BOOL:${independent}>:-fPIE>)
    target_link_libraries(gradual_public_header PRIVATE gradual)
    gradual_precompile(gradual_public_header gradual/gradual.h)
  endif()
  gradual_precompile(${name} REUSE_FROM gradual_public_header)
endfunction()
