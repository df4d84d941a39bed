// The generic kernels on CUDA: what the fast ones do not take, and what they are tested against.
#pragma once

#include "mamba/kernels/scan.h"

namespace mamba::kernels::generic::cuda {

using kernels::cuda::Error;

Error forward(const ScanParams& params, CUstream_st* stream);
int64_t backward_workspace(const ScanGradParams& params);
Error backward(const ScanGradParams& params, void* workspace, CUstream_st* stream);
Error update(const UpdateParams& params, CUstream_st* stream);

}  // namespace mamba::kernels::generic::cuda
