// Entry points of the numerical core. On the CPU a call does a range of the independent pieces of work that the
// matching *_work() counts; any split of the whole range gives the same bits. On CUDA a call enqueues on the stream.
// Nothing here allocates, synchronises, prints or throws.
#pragma once

#include "mamba/kernels/params.h"

struct CUstream_st;  // what cudaStream_t points to

namespace mamba::kernels {

namespace cpu {

/// The ISA level whose kernels run in this process: "baseline", on x86-64 also "v3" (AVX2) or "v4" (AVX-512).
/// MAMBA_OPS_CPU in the environment names the highest one to use.
const char* level_name();

/// A forward with too few channels to share is cut along time. It needs `carries` of carries_size() bytes, aligned to
/// 8, and all of carry() before. Elsewhere both are 0.
int64_t carries_size(const ScanParams& params);
int64_t carry_work(const ScanParams& params);
void carry(const ScanParams& params, Range range);

int64_t forward_work(const ScanParams& params);
void forward(const ScanParams& params, Range range);

int64_t backward_work(const ScanGradParams& params);
void backward(const ScanGradParams& params, Range range);

int64_t update_work(const UpdateParams& params);
void update(const UpdateParams& params, Range range);

/// total[i] = partial[0][i] + partial[1][i] + ... in this order, for i in range; float, or double.
void ordered_sum(const void* partial, int64_t partials, int64_t count, bool is_double, void* total, Range range);

}  // namespace cpu

namespace cuda {

/// A cudaError_t; 0 is success.
using Error = int;

/// A forward with too few channels to fill the device is cut along time. It needs `carries` of carries_size() bytes,
/// aligned to 16; what they hold does not matter. Both calls must see the same params and the same current device.
int64_t carries_size(const ScanParams& params);
Error forward(const ScanParams& params, CUstream_st* stream);

/// Writes whole sums where the params speak of partial ones, so that none of their first dimensions is more than 1 and
/// nothing needs to be zeroed before. `workspace` has backward_workspace() bytes, aligned to 16; what it holds does not
/// matter. Both calls must see the same params and the same current device.
int64_t backward_workspace(const ScanGradParams& params);
Error backward(const ScanGradParams& params, void* workspace, CUstream_st* stream);

Error update(const UpdateParams& params, CUstream_st* stream);
Error ordered_sum(const void* partial, int64_t partials, int64_t count, bool is_double, void* total,
                  CUstream_st* stream);

const char* error_string(Error error);

}  // namespace cuda

}  // namespace mamba::kernels
