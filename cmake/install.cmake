# The installed package: headers under include/gradual/, the library, gradualConfig.cmake, the licence.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

option(GRADUAL_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
if(NOT GRADUAL_INSTALL)
  return()
endif()

foreach(header IN LISTS GRADUAL_PUBLIC_HEADERS)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradual/${folder} COMPONENT gradual)
endforeach()
install(FILES ${GRADUAL_BUILD_INCLUDE}/gradual/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradual
        COMPONENT gradual)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gradual)
install(TARGETS gradual EXPORT gradualTargets COMPONENT gradual
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT gradualTargets NAMESPACE gradual:: DESTINATION ${package_dir} COMPONENT gradual)

set(GRADUAL_FIND_DEPENDENCIES "")
foreach(dependency IN LISTS GRADUAL_EXPORTED_DEPENDENCIES)
  string(APPEND GRADUAL_FIND_DEPENDENCIES "find_dependency(${dependency})\n")
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gradualConfig.cmake.in
  ${PROJECT_BINARY_DIR}/gradualConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradualConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gradualConfig.cmake ${PROJECT_BINARY_DIR}/gradualConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT gradual)
if(GRADUAL_HAVE_ONEDNN)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindoneDNN.cmake DESTINATION ${package_dir} COMPONENT gradual)
endif()

if(GRADUAL_HAVE_CUDA)
  foreach(file FindcuBLASLt FindcuDNN nvidia_packages)
    install(FILES ${PROJECT_SOURCE_DIR}/cmake/${file}.cmake DESTINATION ${package_dir} COMPONENT gradual)
  endforeach()
endif()

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT gradual)
if(TARGET gradual-lab)
  install(TARGETS gradual-lab RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT gradual-lab)
endif()
