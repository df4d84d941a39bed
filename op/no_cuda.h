// What a library built without CUDA says to CUDA tensors.
#pragma once

#include <c10/util/Exception.h>

namespace mamba {

inline void refuse_cuda(const char* op, const char* argument) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op, ": expected ", argument,
      " to be a CPU tensor in a library built without CUDA, but got a CUDA tensor; build "
      "mamba_ops with nvcc on the PATH, or with -DMAMBA_OPS_CUDA=ON to be told what is missing");
}

}  // namespace mamba
