// Picks the kernels of the convolution, and adds its sums.
#include "cuda/conv.h"

#include "cuda/launch.h"
#include "generic/conv_cuda.h"

namespace mamba::kernels::cuda {

namespace {

constexpr int kSumWarps = 8;

struct ConvSumTask {
  const float* sums;  // (parts, dim, width + 1)
  int64_t parts, dim, width;
  float *dweight, *dbias;
};

/// A lane adds up an element; the warps of a block take a run of the parts each, whose sums are added in order.
__global__ void __launch_bounds__(kSumWarps * 32) conv_sum_kernel(const __grid_constant__ ConvSumTask task) {
  __shared__ float runs[kSumWarps][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t count = task.dim * (task.width + 1), at = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  const int64_t run = ceil_div(task.parts, kSumWarps), first = warp * run;
  const int64_t after = first + run < task.parts ? first + run : task.parts;
  float sum = 0;
  if (at < count) {
#pragma unroll 8
    for (int64_t part = first; part < after; ++part) sum += task.sums[part * count + at];
  }
  runs[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || at >= count) return;
  sum = 0;
  for (int i = 0; i < kSumWarps; ++i) sum += runs[i][lane];
  const int64_t channel = at / (task.width + 1), tap = at % (task.width + 1);
  if (tap < task.width && task.dweight) task.dweight[channel * task.width + tap] = sum;
  if (tap == task.width && task.dbias) task.dbias[channel] = sum;
}

}  // namespace

int conv_forward(const ConvParams& params, CUstream_st* stream) {
  const ConvAccess access = conv_forward_access(params);
  if (access == ConvAccess::kGeneric) return generic::cuda::conv_forward(params, stream);
  return with_activation_type(params.activation_type, [&](auto activation) {
    return conv_forward_with<decltype(activation)>(params, access, stream);
  });
}

int64_t conv_backward_workspace(const ConvGradParams& params) {
  const ConvAccess access = conv_backward_access(params);
  if (access == ConvAccess::kGeneric) return generic::cuda::conv_backward_workspace(params);
  const ConvParams& p = params.conv;
  const int64_t parts = p.batch * conv_tiles(p, access, true).per_row;
  return parts * p.dim * (p.width + 1) * static_cast<int64_t>(sizeof(float));
}

int conv_backward(const ConvGradParams& params, void* workspace, CUstream_st* stream) {
  const ConvAccess access = conv_backward_access(params);
  if (access == ConvAccess::kGeneric) return generic::cuda::conv_backward(params, workspace, stream);
  const ConvParams& p = params.conv;
  float* sums = static_cast<float*>(workspace);
  const Error error = with_activation_type(p.activation_type, [&](auto activation) {
    return conv_backward_with<decltype(activation)>(params, access, sums, stream);
  });
  if (error != cudaSuccess || !(params.dweight || params.dbias)) return error;
  const ConvSumTask task = {sums,    p.batch * conv_tiles(p, access, true).per_row, p.dim,
                            p.width, static_cast<float*>(params.dweight),           static_cast<float*>(params.dbias)};
  return launch(conv_sum_kernel, ceil_div(p.dim * (p.width + 1), 32), kSumWarps * 32, 0, stream, task);
}

int conv_update(const ConvUpdateParams& params, CUstream_st* stream) {
  if (!is_fast(params)) return generic::cuda::conv_update(params, stream);
  return with_activation_type(params.activation_type,
                              [&](auto activation) { return conv_update_with<decltype(activation)>(params, stream); });
}

}  // namespace mamba::kernels::cuda
