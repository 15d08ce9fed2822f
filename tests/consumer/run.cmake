# Builds and runs the consumer project:
#   cmake -DMODE=installed    ...  installs the build tree GRADUAL_BUILD into WORK/prefix and uses find_package
#   cmake -DMODE=subdirectory ...  builds the library anew from GRADUAL_SOURCE, by add_subdirectory
#   cmake -DMODE=configured   ...  configures that in a new folder with neither generator nor build type named
# and with -DWORK= -DCXX= -DGENERATOR= -DBUILD_TYPE= -DNATIVE= -DLAB= (whether the package must have gradual::lab)
# -P run.cmake

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "status ${status} from: ${line}")
  endif()
endfunction()

find_program(MAKE make)  # which a fresh machine need not have
if(MODE STREQUAL "configured")
  file(REMOVE_RECURSE ${WORK})
  # by default CMake generates for make; without it, by the generator of the build tree
  set(generator "")
  if(NOT MAKE)
    set(generator -G ${GENERATOR})
  endif()
  run(${CMAKE_COMMAND} -E env --unset=CMAKE_GENERATOR --unset=CMAKE_BUILD_TYPE ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}
      -B ${WORK} ${generator} -DCMAKE_CXX_COMPILER=${CXX} -DGRADUAL_SOURCE=${GRADUAL_SOURCE} -DGRADUAL_BINARY=${WORK}/gradual
      -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
  file(STRINGS ${WORK}/compile_commands.json sources REGEX "\"command\": .*gradual[.]dir/.*[.]cpp")
  if(NOT sources)
    message(FATAL_ERROR "${WORK}/compile_commands.json has no source of the library")
  endif()
  list(FILTER sources EXCLUDE REGEX " -O3 ")
  if(sources)
    list(GET sources 0 source)
    message(FATAL_ERROR "not optimised: ${source}")
  endif()
  return()
endif()
set(arguments -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=${BUILD_TYPE})
if(MODE STREQUAL "installed")
  file(REMOVE_RECURSE ${WORK})
  run(${CMAKE_COMMAND} --install ${GRADUAL_BUILD} --prefix ${WORK}/prefix --component gradual)
  foreach(file include/gradual/gradual.h include/gradual/core/tensor/tensor.h include/gradual/core/ops.def
          include/gradual/version.h share/doc/gradual/LICENSE)
    if(NOT EXISTS ${WORK}/prefix/${file})
      message(FATAL_ERROR "the install lacks ${file}")
    endif()
  endforeach()
  foreach(folder core/cpu lab/main)
    if(EXISTS ${WORK}/prefix/include/gradual/${folder})
      message(FATAL_ERROR "the install holds ${folder}, which is not public")
    endif()
  endforeach()
  list(APPEND arguments -DCMAKE_PREFIX_PATH=${WORK}/prefix -DNEEDS_LAB=${LAB})
else()
  # The flags of the build tree that the tests came from, and the library's own build tree next to that one: a compiler
  # cache then has every object. The compilers of make start in the library's build tree, as those of a build of the
  # library alone do. Those of Ninja start at the top, where the path of a precompiled header is another: the cache
  # misses all that reads one.
  if(MAKE)
    set(GENERATOR "Unix Makefiles")
  endif()
  file(REMOVE_RECURSE ${WORK} ${WORK}-library)
  list(APPEND arguments -DGRADUAL_SOURCE=${GRADUAL_SOURCE} -DGRADUAL_BINARY=${WORK}-library -DGRADUAL_NATIVE=${NATIVE}
       -DGRADUAL_CCACHE=ON)
endif()
run(${CMAKE_COMMAND} -G ${GENERATOR} ${arguments})
run(${CMAKE_COMMAND} --build ${WORK} --parallel 2)
run(${WORK}/consumer)
if(EXISTS ${WORK}/consumer_lab)
  run(${WORK}/consumer_lab --list-recipes)
endif()
