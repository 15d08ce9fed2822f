# CPack's packages (./dev package): libgradual-dev, gradual-lab and gradual-doc as .deb, and all of it as one .tar.gz.
# GRADUAL_PACKAGER, "NAME <ADDRESS>", is who answers for them; without it there are none.

set(GRADUAL_PACKAGER "" CACHE STRING "Maintainer of the packages that CPack makes: \"Name <address>\"")
if(NOT GRADUAL_INSTALL OR GRADUAL_PACKAGER STREQUAL "")
  return()
endif()
foreach(option GRADUAL_NATIVE GRADUAL_HAVE_CUDA GRADUAL_HAVE_ONEDNN GRADUAL_HAVE_MPI)
  if(${option})
    message(FATAL_ERROR "gradual: a package with ${option} would not run on other machines; use the preset \"package\"")
  endif()
endforeach()

set(CPACK_PACKAGE_VENDOR "${GRADUAL_PACKAGER}")
set(CPACK_PACKAGE_CONTACT "${GRADUAL_PACKAGER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "autograd deep-learning framework for precision experiments")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES gradual-lab)
set(CPACK_GENERATOR DEB TGZ)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENTS_ALL gradual gradual-lab gradual-doc)
set(about "Gradual trains networks under many number formats and shows what each format\ndid to the numbers.\n\nThis package has")

set(needs zlib1g-dev)
if(GRADUAL_HAVE_ZIP)
  string(APPEND needs ", libzip-dev")
endif()
if(GRADUAL_SYSTEM_FMT)  # the library calls this version of {fmt}
  string(REGEX MATCH "^[0-9]+" major "${fmt_VERSION}")
  math(EXPR next "${major} + 1")
  string(APPEND needs ", libfmt-dev (>= ${major}), libfmt-dev (<< ${next})")
endif()
string(REPLACE ";" ", " needs "${needs}")
set(CPACK_DEBIAN_GRADUAL_PACKAGE_NAME libgradual-dev)
set(CPACK_DEBIAN_GRADUAL_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_GRADUAL_PACKAGE_DEPENDS "${needs}")
set(CPACK_DEBIAN_GRADUAL_DESCRIPTION "${about} the static library, its headers and printers for gdb.")

set(CPACK_DEBIAN_GRADUAL-LAB_PACKAGE_NAME gradual-lab)
set(CPACK_DEBIAN_GRADUAL-LAB_PACKAGE_SECTION science)
set(CPACK_DEBIAN_GRADUAL-LAB_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_GRADUAL-LAB_DESCRIPTION "${about} the program gradual-lab.")

set(CPACK_DEBIAN_GRADUAL-DOC_PACKAGE_NAME gradual-doc)
set(CPACK_DEBIAN_GRADUAL-DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_GRADUAL-DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_GRADUAL-DOC_DESCRIPTION "${about} the pages and the tutorial.")

# What Debian's policy asks of each package, and why the library keeps debug information.
string(TIMESTAMP GRADUAL_PACKAGE_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(made ${PROJECT_BINARY_DIR}/debian)
foreach(file changelog copyright)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/packaging/${file}.in ${made}/${file} @ONLY)
endforeach()
execute_process(COMMAND gzip -9nkf ${made}/changelog COMMAND_ERROR_IS_FATAL ANY)
foreach(package gradual:libgradual-dev gradual-lab:gradual-lab gradual-doc:gradual-doc)
  string(REGEX MATCH "(.*):(.*)" package ${package})
  install(FILES ${made}/copyright ${made}/changelog.gz DESTINATION share/doc/${CMAKE_MATCH_2} COMPONENT ${CMAKE_MATCH_1})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/cmake/packaging/libgradual-dev.overrides DESTINATION share/lintian/overrides
        RENAME libgradual-dev COMPONENT gradual)

include(CPack)
