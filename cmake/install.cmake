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
if(TARGET gradual_lab)
  install(TARGETS gradual_lab EXPORT gradualTargets COMPONENT gradual ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
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
if(GRADUAL_HAVE_ZIP)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/Findlibzip.cmake DESTINATION ${package_dir} COMPONENT gradual)
endif()

if(GRADUAL_HAVE_CUDA)
  foreach(file FindcuBLASLt FindcuDNN nvidia_packages)
    install(FILES ${PROJECT_SOURCE_DIR}/cmake/${file}.cmake DESTINATION ${package_dir} COMPONENT gradual)
  endforeach()
endif()

# pkg-config's file. Only CMake finds the libraries of CUDA and MPI.
if(NOT GRADUAL_HAVE_CUDA AND NOT GRADUAL_HAVE_MPI)
  set(GRADUAL_PC_REQUIRES "")
  set(GRADUAL_PC_LIBS -pthread)
  foreach(name fmt zlib)
    string(TOUPPER ${name} upper)
    if(GRADUAL_SYSTEM_${upper})
      list(APPEND GRADUAL_PC_REQUIRES ${name})
    endif()
  endforeach()
  if(GRADUAL_HAVE_ZIP)
    list(APPEND GRADUAL_PC_REQUIRES libzip)
  endif()
  if(GRADUAL_HAVE_OPENMP)
    list(APPEND GRADUAL_PC_LIBS ${OpenMP_CXX_FLAGS})
  endif()
  if(GRADUAL_HAVE_ONEDNN)
    list(APPEND GRADUAL_PC_LIBS -ldnnl)
  endif()
  list(JOIN GRADUAL_PC_REQUIRES " " GRADUAL_PC_REQUIRES)
  list(JOIN GRADUAL_PC_LIBS " " GRADUAL_PC_LIBS)
  file(RELATIVE_PATH GRADUAL_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/packaging/gradual.pc.in ${PROJECT_BINARY_DIR}/gradual.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/gradual.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT gradual)
endif()

# What debuggers load (docs/debugging.md).
install(FILES ${PROJECT_SOURCE_DIR}/cmake/debugger/gradual_printers.py ${PROJECT_SOURCE_DIR}/cmake/debugger/skips.gdb
        DESTINATION share/gdb/auto-load/gradual COMPONENT gradual)

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT gradual)
if(TARGET gradual-lab)
  install(TARGETS gradual-lab RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT gradual-lab)
  # The installed program finds its libraries as any other does.
  install(CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/gradual-lab\")"
          COMPONENT gradual-lab)
endif()
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT gradual-doc)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT gradual-doc
        FILES_MATCHING REGEX "[.](md|png|svg|dot|json|cpp)$")
