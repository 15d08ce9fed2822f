# The port of the source tree that it lies in.
vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DGRADUAL_NATIVE=OFF -DGRADUAL_CUDA=OFF -DGRADUAL_ONEDNN=OFF -DGRADUAL_MPI=OFF -DGRADUAL_CCACHE=OFF
          -DGRADUAL_INSTALL=ON -DGRADUAL_BUILD_TESTS=OFF -DGRADUAL_BUILD_EXAMPLES=OFF -DGRADUAL_BUILD_LAB=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/gradual)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
