# cuBLASLt::cuBLASLt, from the CUDA toolkit or Python's nvidia packages. cuBLASLt_ROOT names the first place to look.

include(${CMAKE_CURRENT_LIST_DIR}/nvidia_packages.cmake)
nvidia_package_folders(places)
find_path(cuBLASLt_INCLUDE_DIR cublasLt.h HINTS ${places} PATH_SUFFIXES include)
find_library(cuBLASLt_LIBRARY NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 HINTS ${places}
             PATH_SUFFIXES lib64 lib lib/x64)
mark_as_advanced(cuBLASLt_INCLUDE_DIR cuBLASLt_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cuBLASLt REQUIRED_VARS cuBLASLt_LIBRARY cuBLASLt_INCLUDE_DIR)
if(cuBLASLt_FOUND AND NOT TARGET cuBLASLt::cuBLASLt)
  add_library(cuBLASLt::cuBLASLt UNKNOWN IMPORTED)
  set_target_properties(cuBLASLt::cuBLASLt PROPERTIES IMPORTED_LOCATION ${cuBLASLt_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${cuBLASLt_INCLUDE_DIR})
endif()
