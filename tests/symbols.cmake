# Fails if an object compiled for wider instructions than the build's default contains an inline function that the
# linker could use for other code. Its own functions are in separate namespaces.
#   cmake -DNM=... -DOBJECTS=A|B -P symbols.cmake

string(REPLACE "|" ";" objects "${OBJECTS}")
if(NOT objects)
  message(FATAL_ERROR "no object to look at")
endif()
foreach(object IN LISTS objects)
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  if(NOT symbols MATCHES "gradual::cpu::product<")
    message(FATAL_ERROR "${object} holds no product")
  endif()
  string(REPLACE ";" "," symbols "${symbols}")
  string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
  foreach(symbol IN LISTS symbols)
    if(symbol MATCHES " [TWVu] " AND NOT symbol MATCHES "gradual_eigen_|gradual::cpu::product<| DW[.]ref[.]")
      message(SEND_ERROR "${object} would share with other code: ${symbol}")
    endif()
  endforeach()
endforeach()
