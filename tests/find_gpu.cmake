# cmake -DSOURCE= -DWORK= -P find_gpu.cmake: what gradual_find_gpu makes of the answers of nvidia-smi.
include(${SOURCE}/cmake/find_gpu.cmake)

# expect(NAME SCRIPT GPU): with the program nvidia-smi that SCRIPT is.
function(expect name script gpu)
  set(GRADUAL_NVIDIA_SMI ${WORK}/${name}/nvidia-smi)
  file(WRITE ${GRADUAL_NVIDIA_SMI} "#!/bin/sh\n${script}\n")
  file(CHMOD ${GRADUAL_NVIDIA_SMI} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  gradual_find_gpu(found)
  if(NOT found STREQUAL gpu)
    message(FATAL_ERROR "${name}: expected '${gpu}', found '${found}'")
  endif()
endfunction()

expect(two "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'; echo 'GPU 1: other (UUID: GPU-2)'" "NVIDIA H100 80GB HBM3")
expect(none "echo 'No devices were found'" "")
expect(no_driver "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9" "")
