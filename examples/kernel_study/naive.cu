// Scheme 1, naive: a thread for each (batch, channel), which walks through time as the formula does.
//
// All parallelism is batch * dim: 256 channels are eight warps, on a GPU that wants thousands. With time contiguous,
// neighbouring threads read addresses `length` apart, so that a warp's load touches 32 sectors of memory for 32
// floats; with channels contiguous ([seqlen, batch, dim]) it touches 4.
#include "scan.h"

namespace mamba_study {

namespace {

// One warp a block: few as the warps are, each should have a processor to itself.
constexpr int kThreads = kWarpSize;

template <int kStates>
__global__ void __launch_bounds__(kThreads) scan_naive_kernel(const __grid_constant__ Problem p) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread >= p.batch * p.dim) return;
  const int64_t batch = thread / p.dim, channel = thread % p.dim;
  const float* u = p.u.row(batch, channel);
  const float* delta = p.delta.row(batch, channel);
  const float* B = p.B.row(batch, p.coefficient_row(channel, 0));
  const float* C = p.C.row(batch, p.coefficient_row(channel, 0));
  float* y = p.y.row(batch, channel);

  float h[kStates], rate[kStates];
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    h[n] = 0;
    rate[n] = n < p.dstate ? rate_of(p.A[channel * p.dstate + n]) : 0;
  }

  for (int64_t t = 0; t < p.length; ++t) {
    const float step = delta[t * p.delta.time_stride];
    const float input = step * u[t * p.u.time_stride];
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (n < p.dstate) {
        const float b = B[n * p.B.row_stride + t * p.B.time_stride];
        const float c = C[n * p.C.row_stride + t * p.C.time_stride];
        h[n] = decay_of(step, rate[n]) * h[n] + input * b;
        sum += c * h[n];
      }
    }
    y[t * p.y.time_stride] = sum;
  }
}

}  // namespace

cudaError_t scan_naive(const Problem& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(p.batch * p.dim, kThreads));
  with_states(p.dstate, [&](auto states) { scan_naive_kernel<states.value><<<blocks, kThreads, 0, stream>>>(p); });
  return cudaGetLastError();
}

}  // namespace mamba_study
