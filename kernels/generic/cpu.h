// The generic kernels on the CPU: what cpu/dispatch.cpp falls back on, and the oracle of its tests. The functions are
// those of mamba/kernels/scan.h.
#pragma once

#include "mamba/kernels/params.h"

namespace mamba::kernels::generic::cpu {

int64_t forward_work(const ScanParams& params);
void forward(const ScanParams& params, Range range);

int64_t backward_work(const ScanGradParams& params);
void backward(const ScanGradParams& params, Range range);

int64_t update_work(const UpdateParams& params);
void update(const UpdateParams& params, Range range);

}  // namespace mamba::kernels::generic::cpu
