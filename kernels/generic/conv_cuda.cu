// The generic convolution on CUDA: a thread for each element of out and of the workspace, and for each channel of a
// sequence.
#include "generic/conv_cuda.h"

#include <cuda_runtime.h>

#include "generic/conv.h"
#include "generic/select.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::generic::cuda {

namespace {

constexpr int kThreads = 128;

/// f(i) for the thread's i below `work`.
template <class F>
__global__ void __launch_bounds__(kThreads) for_each_kernel(int64_t work, F f) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < work) f(i);
}

template <class F>
int for_each(int64_t work, CUstream_st* stream, F f) {
  if (work == 0) return cudaSuccess;
  for_each_kernel<<<static_cast<unsigned>(ceil_div(work, kThreads)), kThreads, 0, stream>>>(work, f);
  return cudaGetLastError();
}

template <class T>
struct Forward {
  ConvParams p;
  __device__ void operator()(int64_t i) const {
    generic::conv_forward<T>(p, i / p.length / p.dim, i / p.length % p.dim, i % p.length);
  }
};
template <class T>
struct LastState {
  ConvParams p;
  __device__ void operator()(int64_t i) const { generic::conv_last_state<T>(p, i / p.dim, i % p.dim); }
};
template <class T>
struct Dpre {
  ConvGradParams p;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / p.conv.length;
    generic::conv_dpre<T>(p, row / p.conv.dim, row % p.conv.dim, i % p.conv.length);
  }
};
template <class T>
struct Backward {
  ConvGradParams p;
  __device__ void operator()(int64_t i) const { generic::conv_backward<T>(p, i / p.conv.dim, i % p.conv.dim); }
};
template <class T>
struct Update {
  ConvUpdateParams p;
  __device__ void operator()(int64_t i) const { generic::conv_update<T>(p, i / p.dim, i % p.dim); }
};

}  // namespace

int conv_forward(const ConvParams& params, CUstream_st* stream) {
  return select(params.activation_type, [&](auto activation) {
    using T = typename decltype(activation)::type;
    const int error = for_each(params.batch * params.dim * params.length, stream, Forward<T>{params});
    return error ? error : for_each(params.sequences * params.dim, stream, LastState<T>{params});
  });
}

namespace {

/// The workspace: dpre, then the sums for each sequence.
struct GradWorkspace {
  int64_t dpre = 0, dweight = 0, dbias = 0, bytes = 0;

  explicit GradWorkspace(const ConvGradParams& params) {
    const ConvParams& p = params.conv;
    const int64_t real = p.activation_type == ScalarType::kFloat64 ? 8 : 4;
    const auto reserve = [&](int64_t count) {
      const int64_t at = bytes;
      bytes += ceil_div(count * real, 16) * 16;
      return at;
    };
    dpre = reserve(p.batch * p.dim * p.length);
    dweight = reserve(params.dweight ? p.sequences * p.dim * p.width : 0);
    dbias = reserve(params.dbias ? p.sequences * p.dim : 0);
  }
};

}  // namespace

int64_t conv_backward_workspace(const ConvGradParams& params) {
  return GradWorkspace(params).bytes;
}

int conv_backward(const ConvGradParams& params, void* workspace, CUstream_st* stream) {
  const ConvParams& p = params.conv;
  const GradWorkspace at(params);
  ConvGradParams partial = params;
  char* base = static_cast<char*>(workspace);
  partial.dpre = base + at.dpre;
  if (params.dweight) partial.dweight = base + at.dweight;
  if (params.dbias) partial.dbias = base + at.dbias;
  int error = select(p.activation_type, [&](auto activation) {
    using T = typename decltype(activation)::type;
    const int failed = for_each(p.batch * p.dim * p.length, stream, Dpre<T>{partial});
    return failed ? failed : for_each(p.sequences * p.dim, stream, Backward<T>{partial});
  });
  const bool is_double = p.activation_type == ScalarType::kFloat64;
  const auto add = [&](const void* sums, int64_t count, void* total) {
    if (total && !error) error = kernels::cuda::ordered_sum(sums, p.sequences, count, is_double, total, stream);
  };
  add(partial.dweight, p.dim * p.width, params.dweight);
  add(partial.dbias, p.dim, params.dbias);
  return error;
}

int conv_update(const ConvUpdateParams& params, CUstream_st* stream) {
  return select(params.activation_type, [&](auto activation) {
    return for_each(params.rows * params.dim, stream, Update<typename decltype(activation)::type>{params});
  });
}

}  // namespace mamba::kernels::generic::cuda
