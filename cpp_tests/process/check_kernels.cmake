# Nothing of torch in the kernels: they build and are tested without it.
# Usage: cmake -DKERNELS=<folder> -P check_kernels.cmake
cmake_minimum_required(VERSION 3.25)

file(GLOB_RECURSE sources "${KERNELS}/*.h" "${KERNELS}/*.cuh" "${KERNELS}/*.cpp" "${KERNELS}/*.cu")
list(LENGTH sources count)
if(count LESS 5)
  message(SEND_ERROR "only ${count} sources in ${KERNELS}")
endif()
foreach(source IN LISTS sources)
  file(STRINGS "${source}" found REGEX "#[ \t]*include[ \t]*[<\"](torch|ATen|c10|caffe2)/")
  if(found)
    message(SEND_ERROR "${source}: ${found}")
  endif()
endforeach()
