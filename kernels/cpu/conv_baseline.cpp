// The convolution for any CPU of the architecture.
#define MAMBA_OPS_CPU_LEVEL baseline
#include "cpu/conv_kernels.h"
