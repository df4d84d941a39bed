// The launchers of the convolution's fast kernels: one instantiation for each activation type.
#pragma once

#include "mamba/kernels/config_conv.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cuda {

/// `access` is one of the fast ones.
template <class T>
Error conv_forward_with(const ConvParams& params, ConvAccess access, CUstream_st* stream);

/// `sums` has room for a sum of each tile, channel and tap: see ConvGradTask.
template <class T>
Error conv_backward_with(const ConvGradParams& params, ConvAccess access, float* sums, CUstream_st* stream);

template <class T>
Error conv_update_with(const ConvUpdateParams& params, CUstream_st* stream);

}  // namespace mamba::kernels::cuda
