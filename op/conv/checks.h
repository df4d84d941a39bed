// The checks of the convolution's arguments, the same for all dispatch keys.
#pragma once

#include "conv/conv_arguments.h"

namespace mamba::conv {

void check_conv(const char* op, const ConvArgs& args);
void check_conv_grad(const ConvGradArgs& args);
void check_conv_update(const ConvUpdateArgs& args);

}  // namespace mamba::conv
