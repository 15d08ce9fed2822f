# Tests of what a program prints and how it ends. CTest's PASS_REGULAR_EXPRESSION ignores the status: a program that
# prints the right line and then crashes would pass.
#
#   cmake -DSTATUS=0 "-DPATTERN=accuracy 9[0-9]" -P cmake/expect.cmake -- PROGRAM ARGUMENT...
#
# The test fails unless the output (stdout and stderr together) has a match of PATTERN, a regular expression of CMake,
# and the status is STATUS: a number, or `error` for 1 or 2, what a program of this project ends with after a message.

if(NOT CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  set(gradual_expect_script ${CMAKE_CURRENT_LIST_FILE})

  # gradual_expect(NAME STATUS PATTERN COMMAND ARGUMENT...): adds such a test. COMMAND may be a target. No argument may
  # be empty or have a semicolon.
  function(gradual_expect name status pattern command)
    if(TARGET ${command})
      set(command $<TARGET_FILE:${command}>)
    endif()
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -DSTATUS=${status} "-DPATTERN=${pattern}" -P ${gradual_expect_script}
             -- ${command} ${ARGN})
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.25)
if("${PATTERN}" STREQUAL "")
  message(FATAL_ERROR "a test of printed text has no pattern")
endif()
set(arguments "")
set(begun FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  set(argument "${CMAKE_ARGV${i}}")
  if(begun)
    string(REPLACE ";" "\\;" argument "${argument}")
    list(APPEND arguments "${argument}")
  elseif(argument STREQUAL "--")
    set(begun TRUE)
  endif()
endforeach()
execute_process(COMMAND ${arguments} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
message("${output}")
if(STATUS STREQUAL "error")
  set(STATUS "[12]")
endif()
if(NOT status MATCHES "^${STATUS}$")
  message(SEND_ERROR "the program ended with ${status}; ${STATUS} is expected")
endif()
if(NOT output MATCHES "${PATTERN}")
  message(SEND_ERROR "the output has no match of: ${PATTERN}")
endif()
