// Scheme 2, warp: a warp for each (batch, channel), whose lanes share out time.
//
// A tile is 32 * kSteps steps; lane i holds the steps [i * kSteps, (i + 1) * kSteps). For each state: (1) every lane
// joins its own steps into one pair; (2) a parallel prefix over the lanes, five rounds of shuffles, gives each lane
// all the steps before it as one pair; (3) from the state that this makes, the lane walks its own steps once more.
//
// The price: the recurrence is run twice, and the rounds cost ten shuffles and ten multiplications for each lane and
// state, shared by only kSteps steps. The gain: 32 times the threads of the naive scheme, and loads along time that
// are coalesced. It pays where channels are too few to fill the GPU and time is long.
//
// Products of decays must not overflow: with growing states (A > 0) inf * 0 could appear, as it never does step by
// step. The library's kernels guard against that (kernels/cuda/lane_scan.cuh); this study does not.
#include "scan.h"

namespace mamba_study {

namespace {

constexpr int kWarps = 4;  // of a block; they have nothing to do with each other
constexpr unsigned kWholeWarp = 0xffffffffu;

/// On entry each lane's own pair, on exit the pair of all steps up to and including its own (Hillis and Steele's scan).
__device__ __forceinline__ Pair prefix_over_lanes(Pair pair, int lane) {
#pragma unroll
  for (int by = 1; by < kWarpSize; by *= 2) {
    const Pair earlier{__shfl_up_sync(kWholeWarp, pair.decay, by), __shfl_up_sync(kWholeWarp, pair.input, by)};
    if (lane >= by) pair = join(earlier, pair);
  }
  return pair;
}

/// The pair of all steps before a lane's own: nothing, for the first lane.
__device__ __forceinline__ Pair before_lane(const Pair& until, int lane) {
  const Pair earlier{__shfl_up_sync(kWholeWarp, until.decay, 1), __shfl_up_sync(kWholeWarp, until.input, 1)};
  return lane > 0 ? earlier : Pair();
}

/// Steps [t, t + kSteps) of a row. Those beyond the end read as 0: with delta = 0 such a step changes no state.
template <int kSteps>
__device__ __forceinline__ void read_steps(const Rows<const float>& x, const float* row, int64_t t, int64_t length,
                                           float (&values)[kSteps]) {
  if (kSteps % 4 == 0 && x.quads == Quads::kAlongTime && t + kSteps <= length) {
#pragma unroll
    for (int k = 0; k + 4 <= kSteps; k += 4) {
      const float4 quad = __ldg(reinterpret_cast<const float4*>(row + t + k));
      values[k] = quad.x, values[k + 1] = quad.y, values[k + 2] = quad.z, values[k + 3] = quad.w;
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) values[k] = t + k < length ? __ldg(row + (t + k) * x.time_stride) : 0.f;
}

template <int kSteps>
__global__ void __launch_bounds__(kWarps* kWarpSize) scan_warp_kernel(const __grid_constant__ Problem p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (warp >= p.batch * p.dim) return;  // whole warps leave, so the shuffles below always have 32 lanes
  const int64_t batch = warp / p.dim, channel = warp % p.dim;

  // Lane n keeps the rate of state n, and the state between two tiles; a shuffle reads them.
  const float own_rate = lane < p.dstate ? rate_of(p.A[channel * p.dstate + lane]) : 0.f;
  float own_state = 0;

  for (int64_t first = 0; first < p.length; first += kWarpSize * kSteps) {
    const int64_t t = first + lane * kSteps;
    float delta[kSteps], input[kSteps], sum[kSteps];
    read_steps(p.delta, p.delta.row(batch, channel), t, p.length, delta);
    read_steps(p.u, p.u.row(batch, channel), t, p.length, input);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) input[k] *= delta[k], sum[k] = 0;

    for (int n = 0; n < p.dstate; ++n) {
      const float rate = __shfl_sync(kWholeWarp, own_rate, n), state = __shfl_sync(kWholeWarp, own_state, n);
      float B[kSteps], C[kSteps];
      read_steps(p.B, p.B.row(batch, p.coefficient_row(channel, n)), t, p.length, B);
      read_steps(p.C, p.C.row(batch, p.coefficient_row(channel, n)), t, p.length, C);

      Pair steps[kSteps], own;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        steps[k] = {decay_of(delta[k], rate), input[k] * B[k]};
        own = join(own, steps[k]);
      }
      const Pair before = before_lane(prefix_over_lanes(own, lane), lane);
      float h = before.apply(state);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        h = steps[k].apply(h);
        sum[k] += C[k] * h;
      }
      const float last = __shfl_sync(kWholeWarp, h, kWarpSize - 1);
      if (lane == n) own_state = last;
    }

    float* y = p.y.row(batch, channel);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (t + k < p.length) y[(t + k) * p.y.time_stride] = sum[k];
    }
  }
}

}  // namespace

cudaError_t scan_warp(const Problem& p, int lane_steps, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(p.batch * p.dim, kWarps));
  auto kernel = lane_steps == 1 ? scan_warp_kernel<1> : lane_steps == 4 ? scan_warp_kernel<4> : scan_warp_kernel<8>;
  kernel<<<blocks, kWarps * kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace mamba_study
