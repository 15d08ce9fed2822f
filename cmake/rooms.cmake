# Lists which folder includes which, and fails where one includes a folder above it:
#
#   cmake -DSOURCE=. -P cmake/rooms.cmake
#
# Each line is a folder and the folders below it that it may include; "all" stands for every line above. A folder may
# always include itself, and the top-level gradual.h only lists headers.

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
  "autograd:core/support core/formats core/tensor core/ops core/observe core/kernels"
  "nn:core autograd"
  "optim:core autograd"
  "data:core autograd"
  "amp:core autograd nn optim data"
  "cuda:core/support core/formats core/tensor core/quantize core/kernels"
  "cuda/runtime:core/support core/formats core/tensor core/ops core/quantize core/kernels cuda"
  "cuda/kernels:core/support core/formats core/tensor core/ops core/quantize core/kernels cuda cuda/runtime"
  "cuda/libraries:core/support core/formats core/tensor core/ops core/kernels cuda cuda/runtime cuda/kernels"
  "inspect:core autograd nn optim amp"
  "lab:core autograd nn optim data amp inspect cuda")
# "core" stands for what users see of it: all rooms but the kernels of the CPU.
set(core core/support core/formats core/tensor core/ops core/observe core/quantize core/kernels core/files)

file(REAL_PATH ${SOURCE} SOURCE)
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

  file(GLOB files RELATIVE ${SOURCE} ${SOURCE}/${room}/*.h ${SOURCE}/${room}/*.cpp ${SOURCE}/${room}/*.cu)
  set(seen "")
  foreach(file IN LISTS files)
    file(STRINGS ${SOURCE}/${file} includes REGEX "^ *#include \"\\.\\./")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "^ *#include \"([^\"]+)\".*" "\\1" path "${include}")
      cmake_path(SET target NORMALIZE "${room}/${path}")
      cmake_path(GET target PARENT_PATH folder)
      list(APPEND seen ${folder})
      if(NOT folder STREQUAL room AND NOT folder IN_LIST allowed AND NOT target STREQUAL "core/ops.def")
        message(SEND_ERROR "${file} includes ${target}: ${room} may include ${allowed}")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_ITEM seen ${room})
  list(REMOVE_DUPLICATES seen)
  list(SORT seen)
  string(REPLACE ";" " " seen "${seen}")
  message("${room} -> ${seen}")
endforeach()
