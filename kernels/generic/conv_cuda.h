// The generic kernels of the convolution on CUDA: what the fast ones do not take, and what they are tested against.
#pragma once

#include "mamba/kernels/conv.h"

namespace mamba::kernels::generic::cuda {

int conv_forward(const ConvParams& params, CUstream_st* stream);
int64_t conv_backward_workspace(const ConvGradParams& params);
int conv_backward(const ConvGradParams& params, void* workspace, CUstream_st* stream);
int conv_update(const ConvUpdateParams& params, CUstream_st* stream);

}  // namespace mamba::kernels::generic::cuda
