// The convolution for x86-64-v3: AVX2.
#define MAMBA_OPS_CPU_LEVEL v3
#include "cpu/conv_kernels.h"
