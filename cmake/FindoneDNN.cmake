# oneDNN::oneDNN, only the library and its headers: Debian's dnnl-config.cmake requires OpenCL, which CPUs do not need.
# Gives oneDNN_FOUND and oneDNN_VERSION; oneDNN_ROOT says where to look first.

find_path(oneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(oneDNN_LIBRARY dnnl)
mark_as_advanced(oneDNN_INCLUDE_DIR oneDNN_LIBRARY)
if(oneDNN_INCLUDE_DIR AND EXISTS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h)
  set(oneDNN_VERSION "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h line REGEX "#define DNNL_VERSION_${part} ")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND oneDNN_VERSION "${number}")
  endforeach()
  list(JOIN oneDNN_VERSION "." oneDNN_VERSION)
endif()

# It uses OpenMP's threads: core/onednn sets their number for a primitive by OpenMP.
if(oneDNN_INCLUDE_DIR AND EXISTS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h)
  file(STRINGS ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h oneDNN_OPENMP
       REGEX "#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_OMP")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR oneDNN_OPENMP
                                  VERSION_VAR oneDNN_VERSION
                                  HANDLE_VERSION_RANGE)
if(oneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
  add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
  set_target_properties(oneDNN::oneDNN PROPERTIES IMPORTED_LOCATION ${oneDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${oneDNN_INCLUDE_DIR})
endif()
