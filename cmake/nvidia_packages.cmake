# nvidia_package_folders(VAR): where NVIDIA's libraries may lie: the CUDA toolkit's folders, then those of Python's
# packages nvidia-* (which hold libraries under their full names alone).

function(nvidia_package_folders result)
  find_package(CUDAToolkit QUIET)
  set(places ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_TARGET_DIR} ${CUDAToolkit_LIBRARY_ROOT})
  find_program(NVIDIA_PACKAGES_PYTHON NAMES python3 python)
  mark_as_advanced(NVIDIA_PACKAGES_PYTHON)
  if(NVIDIA_PACKAGES_PYTHON)
    execute_process(COMMAND ${NVIDIA_PACKAGES_PYTHON} -c
                    "import nvidia, os; print(';'.join(os.path.join(p, d) for p in nvidia.__path__ for d in sorted(os.listdir(p))))"
                    OUTPUT_VARIABLE packages ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND places ${packages})
  endif()
  set(${result} ${places} PARENT_SCOPE)
endfunction()
