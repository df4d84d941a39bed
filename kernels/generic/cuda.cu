// The generic kernels on CUDA: a thread does what the CPU does in one iteration.
#include <cuda_runtime.h>

#include "generic/cuda.h"
#include "generic/scan.h"
#include "generic/select.h"
#include "generic/update.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels {

namespace {

constexpr int kThreads = 128;

__device__ int64_t global_thread() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

template <class T, class State>
__global__ void __launch_bounds__(kThreads) forward_kernel(ScanParams params) {
  const int64_t i = global_thread();
  if (i < params.sequences * params.dim) generic::forward<T, State>(params, i / params.dim, i % params.dim);
}

template <class T, class State>
__global__ void __launch_bounds__(kThreads) backward_kernel(ScanGradParams params, ChannelBlocks blocks) {
  const int64_t i = global_thread();
  if (i < params.scan.sequences * blocks.count) {
    generic::backward<T, State>(params, blocks, i / blocks.count, i % blocks.count);
  }
}

template <class T, class Stored>
__global__ void __launch_bounds__(kThreads) update_kernel(UpdateParams params) {
  const int64_t i = global_thread(), channel = i / params.head_dim;
  if (channel < params.rows * params.heads) {
    generic::update<T, Stored>(params, channel / params.heads, channel % params.heads, i % params.head_dim);
  }
}

template <class Real>
__global__ void __launch_bounds__(kThreads)
    ordered_sum_kernel(const Real* partial, int64_t partials, int64_t count, Real* total) {
  const int64_t i = global_thread();
  if (i >= count) return;
  Real sum = 0;
  for (int64_t k = 0; k < partials; ++k) sum += partial[k * count + i];
  total[i] = sum;
}

/// Launches a kernel on `work` threads, if there is any.
template <class... Params, class... Args>
cuda::Error launch(void (*kernel)(Params...), int64_t work, CUstream_st* stream, const Args&... args) {
  if (work == 0) return cudaSuccess;
  kernel<<<static_cast<unsigned>(ceil_div(work, kThreads)), kThreads, 0, stream>>>(args...);
  return cudaGetLastError();
}

}  // namespace

namespace generic::cuda {

Error forward(const ScanParams& params, CUstream_st* stream) {
  return select(params, [&](auto activation, auto state) {
    using T = typename decltype(activation)::type;
    using State = typename decltype(state)::type;
    return launch(forward_kernel<T, State>, params.sequences * params.dim, stream, params);
  });
}

namespace {

/// The sums that a backward leaves in the workspace first.
struct PartialSums {
  using Total = void* ScanGradParams::*;
  struct Sum {
    Total total;
    int64_t partials, count;  // count: of real numbers in a partial sum
  };
  Sum sums[5];
  int64_t real_size;

  explicit PartialSums(const ScanGradParams& params) {
    const ScanParams& p = params.scan;
    real_size = p.activation_type == ScalarType::kFloat64 ? 8 : 4;
    const int64_t per_state = p.is_complex ? 2 : 1, states = p.dim * p.dstate * per_state;
    auto coefficient = [&](const Coefficient& x) {
      return x.is_constant ? states : p.batch * x.groups * p.dstate * p.length * per_state;
    };
    sums[0] = {&ScanGradParams::dA, p.sequences, states};
    sums[1] = {&ScanGradParams::dB, partial_sums(p, p.B), coefficient(p.B)};
    sums[2] = {&ScanGradParams::dC, partial_sums(p, p.C), coefficient(p.C)};
    sums[3] = {&ScanGradParams::dD, p.sequences, p.dim};
    sums[4] = {&ScanGradParams::ddelta_bias, p.sequences, p.dim};
    for (Sum& sum : sums) {
      if (!(params.*sum.total)) sum.partials = sum.count = 0;
    }
  }
  int64_t bytes(const Sum& sum) const { return ceil_div(sum.partials * sum.count * real_size, 16) * 16; }
};

}  // namespace

int64_t backward_workspace(const ScanGradParams& params) {
  const PartialSums partial(params);
  int64_t bytes = 0;
  for (const auto& sum : partial.sums) bytes += partial.bytes(sum);
  return bytes;
}

Error backward(const ScanGradParams& params, void* workspace, CUstream_st* stream) {
  const PartialSums partial(params);
  ScanGradParams into_workspace = params;
  char* next = static_cast<char*>(workspace);
  for (const auto& sum : partial.sums) {
    if (params.*sum.total) into_workspace.*sum.total = next;
    next += partial.bytes(sum);
  }
  const size_t bytes = static_cast<size_t>(next - static_cast<char*>(workspace));
  if (const cudaError_t error = cudaMemsetAsync(workspace, 0, bytes, stream); error != cudaSuccess) return error;

  const ChannelBlocks blocks = channel_blocks(params.scan);
  Error error = select(params.scan, [&](auto activation, auto state) {
    using T = typename decltype(activation)::type;
    using State = typename decltype(state)::type;
    return launch(backward_kernel<T, State>, params.scan.sequences * blocks.count, stream, into_workspace, blocks);
  });
  for (const auto& sum : partial.sums) {
    if (error != cudaSuccess || sum.count == 0) continue;
    error = kernels::cuda::ordered_sum(into_workspace.*sum.total, sum.partials, sum.count, partial.real_size == 8,
                                       params.*sum.total, stream);
  }
  return error;
}

Error update(const UpdateParams& params, CUstream_st* stream) {
  return generic::select(params.activation_type, [&](auto activation) {
    return generic::select(params.state_type, [&](auto stored) {
      using T = typename decltype(activation)::type;
      using Stored = typename decltype(stored)::type;
      return launch(update_kernel<T, Stored>, params.rows * params.heads * params.head_dim, stream, params);
    });
  });
}

}  // namespace generic::cuda

namespace cuda {

Error ordered_sum(const void* partial, int64_t partials, int64_t count, bool is_double, void* total,
                  CUstream_st* stream) {
  if (is_double) {
    return launch(ordered_sum_kernel<double>, count, stream, static_cast<const double*>(partial), partials, count,
                  static_cast<double*>(total));
  }
  return launch(ordered_sum_kernel<float>, count, stream, static_cast<const float*>(partial), partials, count,
                static_cast<float*>(total));
}

const char* error_string(Error error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

}  // namespace cuda

}  // namespace mamba::kernels
