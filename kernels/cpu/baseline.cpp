// The kernels for any CPU of the architecture.
#define MAMBA_OPS_CPU_LEVEL baseline
#include "cpu/level_kernels.h"
