// The convolution for x86-64-v4: AVX-512.
#define MAMBA_OPS_CPU_LEVEL v4
#include "cpu/conv_kernels.h"
