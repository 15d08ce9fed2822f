# The CUDA backend (GRADUAL_CUDA): compiled by nvcc if requested, and by default if this machine has a GPU and the
# toolkit; by the C++ compiler with the emulator of cuda/emulator if requested; else a stub. Included when the target
# gradual exists.

set(GRADUAL_HAVE_CUDA OFF)
set(cuda_dir ${PROJECT_SOURCE_DIR}/cuda)

if(GRADUAL_CUDA STREQUAL "EMULATED")
  set(doubles ${PROJECT_SOURCE_DIR}/tests/doubles)  # cuBLASLt and cuDNN
  file(GLOB kernels CONFIGURE_DEPENDS ${cuda_dir}/runtime/*.cu ${cuda_dir}/kernels/*.cu)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${cuda_dir}/runtime/*.cpp ${cuda_dir}/kernels/*.cpp ${cuda_dir}/libraries/*.cpp
       ${cuda_dir}/emulator/*.cpp ${doubles}/*.cpp)
  list(APPEND cuda_sources ${kernels})
  set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
  set_source_files_properties(${cuda_sources} PROPERTIES INCLUDE_DIRECTORIES "${cuda_dir}/emulator;${doubles}")
  if(GRADUAL_SANITIZE MATCHES "thread")  # these tell the sanitizer which fiber runs, and are not instrumented
    set_source_files_properties(${cuda_dir}/emulator/fibers.cpp ${cuda_dir}/emulator/streams.cpp PROPERTIES
      COMPILE_OPTIONS "-fno-sanitize=thread" COMPILE_DEFINITIONS GRADUAL_SANITIZE_THREAD)
    # The sanitizer distinguishes some 250 threads, of all streams together.
    set_property(SOURCE ${cuda_sources} APPEND PROPERTY COMPILE_DEFINITIONS GRADUAL_EMULATED_THREADS=64)
  endif()
  target_sources(gradual PRIVATE ${cuda_sources})
  message(STATUS "gradual: CUDA is emulated on the CPU")
  return()
endif()

# nvcc takes as long as all other compilers together, so by default it runs where its code can run.
set(wanted ON)
if(GRADUAL_CUDA STREQUAL "OFF")
  set(wanted OFF)
elseif(GRADUAL_CUDA STREQUAL "AUTO")
  include(find_gpu)
  gradual_find_gpu(gpu)
  if(NOT gpu)
    set(wanted OFF)
    message(STATUS "gradual: no NVIDIA GPU here, so CUDA is left out (-DGRADUAL_CUDA=ON compiles it all the same)")
  endif()
endif()

# The toolkit in the usual places, and cuDNN there or inside Python's packages.
if(wanted)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(GRADUAL_NVCC nvcc HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda /opt/cuda PATH_SUFFIXES bin)
    mark_as_advanced(GRADUAL_NVCC)
    if(GRADUAL_NVCC)
      set(CMAKE_CUDA_COMPILER ${GRADUAL_NVCC} CACHE FILEPATH "nvcc")
    endif()
  endif()
  set(missing "")
  if(CMAKE_CUDA_COMPILER)
    get_filename_component(CUDAToolkit_ROOT ${CMAKE_CUDA_COMPILER} DIRECTORY)
    find_package(CUDAToolkit 12.4 QUIET)
    find_package(cuBLASLt QUIET)
    find_package(cuDNN 9 QUIET)
    if(NOT CUDAToolkit_FOUND)
      set(missing "CUDA toolkit, 12.4 or newer")
    elseif(NOT cuBLASLt_FOUND)
      set(missing "cuBLASLt")
    elseif(NOT cuDNN_FOUND)
      set(missing "cuDNN 9")
    endif()
  else()
    set(missing "CUDA toolkit (nvcc)")
  endif()
  if(NOT missing)
    set(GRADUAL_HAVE_CUDA ON)
  elseif(GRADUAL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "gradual: GRADUAL_CUDA is ON, but there is no ${missing}. Install it, or name its place with "
                        "-DCMAKE_CUDA_COMPILER=.. and -DcuDNN_ROOT=.., or say -DGRADUAL_CUDA=OFF.")
  else()
    message(STATUS "gradual: this machine has a GPU (${gpu}), but no ${missing}: CUDA is left out")
  endif()
endif()

if(NOT GRADUAL_HAVE_CUDA)
  target_sources(gradual PRIVATE ${cuda_dir}/stub/stub.cpp)
  return()
endif()

# For the GPUs of this machine, else for Hopper.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(architectures "")
  find_program(GRADUAL_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(GRADUAL_NVIDIA_SMI)
  if(GRADUAL_NVIDIA_SMI)
    execute_process(COMMAND ${GRADUAL_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE architectures ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REGEX MATCHALL "[0-9]+[.][0-9]+" architectures "${architectures}")
    string(REPLACE "." "" architectures "${architectures}")
    list(REMOVE_DUPLICATES architectures)
  endif()
  if(NOT architectures)
    set(architectures 90)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "Compute capabilities to compile for" FORCE)
endif()
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER} CACHE FILEPATH "The compiler that nvcc calls")
if(GRADUAL_FOUND_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
set_target_properties(gradual PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")  # it is older than the variable
message(STATUS "gradual: CUDA ${CUDAToolkit_VERSION}, cuDNN ${cuDNN_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES}")

# Kernels round as the CPU does: no contraction to fma. constexpr functions may run on the device.
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${cuda_dir}/runtime/*.cu ${cuda_dir}/kernels/*.cu ${cuda_dir}/libraries/*.cu)
add_library(gradual_cuda OBJECT ${cuda_kernels})
target_compile_options(gradual_cuda PRIVATE ${GRADUAL_DEFAULT_OPTIMIZATION} -std=c++20 --fmad=false --expt-relaxed-constexpr --extended-lambda
                       "SHELL:-Xcompiler -ffp-contract=off,-Wall,-Wextra,-fPIC")
target_include_directories(gradual_cuda PRIVATE ${GRADUAL_BUILD_INCLUDE})
target_link_libraries(gradual_cuda PRIVATE gradual_dep_fmt)
file(GLOB cuda_sources CONFIGURE_DEPENDS ${cuda_dir}/runtime/*.cpp ${cuda_dir}/kernels/*.cpp ${cuda_dir}/libraries/*.cpp)
target_sources(gradual PRIVATE ${cuda_sources} $<TARGET_OBJECTS:gradual_cuda>)
# Only these sources see the toolkit's headers. The others then compile as they do without CUDA, and a compiler cache
# has them.
set(cuda_libraries CUDA::cudart_static cuBLASLt::cuBLASLt cuDNN::cuDNN)
target_link_libraries(gradual PRIVATE $<LINK_ONLY:${cuda_libraries}>)
set(toolkit_folders "")
foreach(library IN LISTS cuda_libraries)
  get_target_property(folders ${library} INTERFACE_INCLUDE_DIRECTORIES)
  list(APPEND toolkit_folders ${folders})
endforeach()
list(REMOVE_DUPLICATES toolkit_folders)
list(TRANSFORM toolkit_folders PREPEND -isystem)
set_property(SOURCE ${cuda_sources} APPEND PROPERTY COMPILE_OPTIONS ${toolkit_folders})
# NVIDIA's compiler, which cuDNN loads by its name while a program runs.
include(${CMAKE_CURRENT_LIST_DIR}/nvidia_packages.cmake)
nvidia_package_folders(places)
find_library(GRADUAL_NVRTC NAMES nvrtc libnvrtc.so.13 libnvrtc.so.12 HINTS ${places} PATH_SUFFIXES lib64 lib)
mark_as_advanced(GRADUAL_NVRTC)
if(GRADUAL_NVRTC)
  set_source_files_properties(${cuda_dir}/libraries/cudnn_graph.cpp TARGET_DIRECTORY gradual
                              PROPERTIES COMPILE_DEFINITIONS GRADUAL_NVRTC="${GRADUAL_NVRTC}")
endif()
list(APPEND GRADUAL_EXPORTED_DEPENDENCIES "CUDAToolkit" "cuBLASLt" "cuDNN 9")
