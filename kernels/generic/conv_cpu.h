// The generic kernels of the convolution on the CPU: what the vectorised ones do not take, and what they are tested
// against.
#pragma once

#include "mamba/kernels/conv.h"

namespace mamba::kernels::generic::cpu {

int64_t conv_forward_work(const ConvParams& params);
void conv_forward(const ConvParams& params, Range range);
int64_t conv_dpre_work(const ConvGradParams& params);
void conv_dpre(const ConvGradParams& params, Range range);
int64_t conv_backward_work(const ConvGradParams& params);
void conv_backward(const ConvGradParams& params, Range range);
int64_t conv_update_work(const ConvUpdateParams& params);
void conv_update(const ConvUpdateParams& params, Range range);

}  // namespace mamba::kernels::generic::cpu
