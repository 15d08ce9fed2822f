# cuDNN::cuDNN, the loader library: next to the CUDA toolkit, where the system keeps it, or inside Python's package
# nvidia-cudnn. Gives cuDNN_FOUND and cuDNN_VERSION; cuDNN_ROOT says where to look first.

include(${CMAKE_CURRENT_LIST_DIR}/nvidia_packages.cmake)
nvidia_package_folders(places)
find_path(cuDNN_INCLUDE_DIR cudnn.h HINTS ${places} PATH_SUFFIXES include)
find_library(cuDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${places} PATH_SUFFIXES lib64 lib lib/x64)
mark_as_advanced(cuDNN_INCLUDE_DIR cuDNN_LIBRARY)
if(cuDNN_INCLUDE_DIR AND EXISTS ${cuDNN_INCLUDE_DIR}/cudnn_version.h)
  set(cuDNN_VERSION "")
  foreach(part MAJOR MINOR PATCHLEVEL)
    file(STRINGS ${cuDNN_INCLUDE_DIR}/cudnn_version.h line REGEX "#define CUDNN_${part} ")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND cuDNN_VERSION "${number}")
  endforeach()
  list(JOIN cuDNN_VERSION "." cuDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cuDNN REQUIRED_VARS cuDNN_LIBRARY cuDNN_INCLUDE_DIR VERSION_VAR cuDNN_VERSION)
if(cuDNN_FOUND AND NOT TARGET cuDNN::cuDNN)
  add_library(cuDNN::cuDNN UNKNOWN IMPORTED)
  set_target_properties(cuDNN::cuDNN PROPERTIES IMPORTED_LOCATION ${cuDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${cuDNN_INCLUDE_DIR})
endif()
