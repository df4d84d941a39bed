// Pure functions from the size of a problem to how the CPU kernels cut it up, alike on every ISA level.
#pragma once

#include "mamba/kernels/config.h"

namespace mamba::kernels::cpu {

/// Channels of a piece of forward work: as many as the widest vector has lanes.
constexpr int64_t kForwardChannels = 16;

}  // namespace mamba::kernels::cpu
