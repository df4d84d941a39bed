// The convolution on CUDA: a thread for each element of out and of the workspace, and for each channel of a sequence.
#include <cuda_runtime.h>

#include "generic/conv.h"
#include "generic/select.h"

namespace mamba::kernels::cuda {

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
  return generic::select(params.activation_type, [&](auto activation) {
    using T = typename decltype(activation)::type;
    const int error = for_each(params.batch * params.dim * params.length, stream, Forward<T>{params});
    return error ? error : for_each(params.sequences * params.dim, stream, LastState<T>{params});
  });
}

int conv_backward(const ConvGradParams& params, CUstream_st* stream) {
  const ConvParams& p = params.conv;
  return generic::select(p.activation_type, [&](auto activation) {
    using T = typename decltype(activation)::type;
    const int error = for_each(p.batch * p.dim * p.length, stream, Dpre<T>{params});
    return error ? error : for_each(p.sequences * p.dim, stream, Backward<T>{params});
  });
}

int conv_update(const ConvUpdateParams& params, CUstream_st* stream) {
  return generic::select(params.activation_type, [&](auto activation) {
    return for_each(params.rows * params.dim, stream, Update<typename decltype(activation)::type>{params});
  });
}

}  // namespace mamba::kernels::cuda
