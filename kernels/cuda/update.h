// The launcher of the decoding step: one instantiation for each activation type and type of state.
#pragma once

#include "mamba/kernels/config_decode.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cuda {

/// What update() does with a task that is_taken.
Error update_by_task(const UpdateParams& params, const UpdateTask& task, CUstream_st* stream);

template <class T, class Stored>
Error update_with(const UpdateTask& task, CUstream_st* stream);

}  // namespace mamba::kernels::cuda
