// The kernels for x86-64-v3: AVX2, FMA.
#define MAMBA_OPS_CPU_LEVEL v3
#include "cpu/level_kernels.h"
