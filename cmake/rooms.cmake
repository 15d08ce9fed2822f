# Lists which folder includes which, and fails where one includes a folder that its line does not allow:
#
#   cmake -DSOURCE=. -P cmake/rooms.cmake
#
# Each line is a folder and the folders that it may include; "all" stands for every line above. A folder may always
# include itself. A folder with sources but without a line is an error. The top-level gradual.h only lists headers, and
# columns.cpp only calls registrations; they have no line.

cmake_minimum_required(VERSION 3.25)
set(rooms
  "core/support:"
  "core/formats:all"
  "core/tensor:all"
  "core/ops:all"
  "core/observe:all"
  "core/quantize:all"
  "core/kernels:all"
  "core/files:core/support core/formats core/tensor core/ops"
  "core/cpu:core/support core/formats core/tensor core/ops core/kernels"
  "core/cpu/fast:core/support core/formats core/tensor core/ops core/kernels core/cpu"
  "core/onednn:core/support core/formats core/tensor core/ops core/kernels core/cpu"
  "autograd:core/support core/formats core/tensor core/ops core/observe core/quantize core/kernels"
  "nn:core autograd"
  "optim:core autograd"
  "data:core autograd"
  "amp/json:core/support core/formats core/quantize amp"  # headers of amp/recipe_json.cpp that are not public
  "amp:core autograd nn optim data amp/json"
  "cuda:core/support core/formats core/tensor core/quantize core/kernels"
  "cuda/runtime:core/support core/formats core/tensor core/ops core/quantize core/kernels cuda"
  "cuda/stub:core/support core/tensor core/quantize core/kernels cuda cuda/runtime"
  "cuda/kernels:core/support core/formats core/tensor core/ops core/quantize core/kernels cuda cuda/runtime"
  "cuda/libraries:core/support core/formats core/tensor core/ops core/kernels cuda cuda/runtime cuda/kernels"
  "cuda/emulator:core/support cuda/runtime cuda/kernels"
  "inspect:core autograd nn optim amp"
  "dist:core autograd nn optim data amp"
  "pt2:core autograd nn"
  "lab/json:core amp inspect"  # as amp/json
  "lab:core autograd nn optim data amp inspect dist cuda pt2 lab/json"
  "lab/main:core autograd nn optim data amp inspect dist pt2 lab")
# "core" stands for what users see of it: all rooms but the kernels of the CPU.
set(core core/support core/formats core/tensor core/ops core/observe core/quantize core/kernels core/files)
set(no_rooms build examples tests bench docs cmake shared)

file(REAL_PATH ${SOURCE} SOURCE)

# The file that an include in `room` names, relative to SOURCE; empty for a header of another project.
function(find_included room include result)
  set(${result} "" PARENT_SCOPE)
  string(REGEX REPLACE "^[ \t]*#[ \t]*include[ \t]*([\"<])([^\">]+).*" "\\1;\\2" parts "${include}")
  list(GET parts 0 quote)
  list(GET parts 1 path)
  string(REGEX REPLACE "^gradual/" "" public "${path}")
  if(quote STREQUAL "\"")
    set(places "${room}/${path}" "${path}" "${public}")
  elseif(NOT public STREQUAL path)
    set(places "${public}")
  else()
    return()
  endif()
  foreach(place IN LISTS places)
    cmake_path(NORMAL_PATH place)
    if(EXISTS ${SOURCE}/${place})
      set(${result} "${place}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

set(folders "")  # with sources
file(GLOB tops RELATIVE ${SOURCE} ${SOURCE}/*)
list(REMOVE_ITEM tops ${no_rooms})
foreach(top IN LISTS tops)
  file(GLOB_RECURSE files RELATIVE ${SOURCE} ${SOURCE}/${top}/*.h ${SOURCE}/${top}/*.cpp ${SOURCE}/${top}/*.cu)
  foreach(file IN LISTS files)
    cmake_path(GET file PARENT_PATH folder)
    list(APPEND folders ${folder})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES folders)

set(above "")
foreach(line IN LISTS rooms)
  string(REGEX MATCH "^([^:]+):(.*)$" line "${line}")
  set(room ${CMAKE_MATCH_1})
  string(REPLACE " " ";" allowed "${CMAKE_MATCH_2}")
  if(allowed STREQUAL "all")
    set(allowed ${above})
  elseif("core" IN_LIST allowed)
    list(APPEND allowed ${core})
  endif()
  list(APPEND above ${room})
  list(REMOVE_ITEM folders ${room})

  file(GLOB files RELATIVE ${SOURCE} ${SOURCE}/${room}/*.h ${SOURCE}/${room}/*.cpp ${SOURCE}/${room}/*.cu)
  set(seen "")
  foreach(file IN LISTS files)
    file(STRINGS ${SOURCE}/${file} includes REGEX "^[ \t]*#[ \t]*include[ \t]*[\"<]")
    foreach(include IN LISTS includes)
      find_included("${room}" "${include}" target)
      if(NOT target)
        continue()
      endif()
      cmake_path(GET target PARENT_PATH folder)
      list(APPEND seen ${folder})
      if(NOT folder STREQUAL room AND NOT folder IN_LIST allowed AND NOT target STREQUAL "core/ops.def")
        message(SEND_ERROR "${file} includes ${target}: ${room} may include ${allowed}")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES seen)
  list(REMOVE_ITEM seen ${room})
  list(SORT seen)
  string(REPLACE ";" " " seen "${seen}")
  message("${room} -> ${seen}")
endforeach()
foreach(folder IN LISTS folders)
  message(SEND_ERROR "${folder} has no line in cmake/rooms.cmake")
endforeach()
