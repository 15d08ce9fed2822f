# Headers are next to their sources and include each other by relative path. Users write <gradual/nn/linear.h>; in the
# build tree that is a generated header of one line which includes the real one, and the install puts the real ones
# there.

set(GRADUAL_PUBLIC_FOLDERS autograd nn optim amp data inspect dist pt2 lab)
foreach(room support formats tensor ops observe quantize kernels files)
  list(APPEND GRADUAL_PUBLIC_FOLDERS core/${room})
endforeach()
list(TRANSFORM GRADUAL_PUBLIC_FOLDERS APPEND "/*.h" OUTPUT_VARIABLE patterns)
list(TRANSFORM patterns PREPEND "${PROJECT_SOURCE_DIR}/")
file(GLOB GRADUAL_PUBLIC_HEADERS RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/gradual.h ${PROJECT_SOURCE_DIR}/core/*.def ${PROJECT_SOURCE_DIR}/inspect/*.def
     ${PROJECT_SOURCE_DIR}/lab/*.def ${PROJECT_SOURCE_DIR}/cuda/cuda.h
     ${PROJECT_SOURCE_DIR}/cuda/runtime/graph.h ${patterns})

set(GRADUAL_BUILD_INCLUDE ${PROJECT_BINARY_DIR}/include)
configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${GRADUAL_BUILD_INCLUDE}/gradual/version.h @ONLY)

file(REAL_PATH ${PROJECT_SOURCE_DIR} real_source)
foreach(header IN LISTS GRADUAL_PUBLIC_HEADERS)
  set(forward ${GRADUAL_BUILD_INCLUDE}/gradual/${header})
  get_filename_component(folder ${forward} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(REAL_PATH ${folder} folder)
  # relative, so that the text (and a compiler cache) does not depend on where the checkout lies
  file(RELATIVE_PATH real ${folder} ${real_source}/${header})
  set(once "#pragma once\n")
  if(header MATCHES "\\.def$")
    set(once "")
  endif()
  file(CONFIGURE OUTPUT ${forward} CONTENT "${once}#include \"${real}\"\n" @ONLY)
endforeach()

# Building this refreshes the forwarding headers alone (ninja re-checks the globs first).
add_custom_target(headers)

# a header that was removed leaves no forwarding header behind
file(GLOB_RECURSE present RELATIVE ${GRADUAL_BUILD_INCLUDE}/gradual ${GRADUAL_BUILD_INCLUDE}/gradual/*)
list(REMOVE_ITEM present version.h ${GRADUAL_PUBLIC_HEADERS})
foreach(stale IN LISTS present)
  file(REMOVE ${GRADUAL_BUILD_INCLUDE}/gradual/${stale})
endforeach()
