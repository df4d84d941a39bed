// Scans of h_t = a_t h_{t-1} + b_t over the lanes of a warp, each of which holds some consecutive steps of a channel.
#pragma once

#include "cuda/fast_math.cuh"

namespace mamba::kernels::cuda {

/// The value of the lane `by` lanes earlier in time; of a later one for the adjoint, whose time runs backwards. The
/// lanes of a channel are kBetween lanes apart.
template <int kLanes, bool is_adjoint, int kBetween = 1>
__device__ __forceinline__ float from_earlier(float x, int by) {
  constexpr int kWidth = kLanes * kBetween;
  return is_adjoint ? __shfl_down_sync(kWholeWarp, x, by * kBetween, kWidth)
                    : __shfl_up_sync(kWholeWarp, x, by * kBetween, kWidth);
}

/// On entry `h` is what a lane's steps make of a state 0 (of the carry, in the first lane) and `decay` the product of
/// their decays (0 in the first lane, which therefore needs no special case below); on exit `h` is the state after the
/// lane's steps. Products of decays must not overflow: see growth_of().
template <int kLanes, bool is_adjoint = false, int kBetween = 1>
__device__ __forceinline__ void scan_lanes(float& h, float decay) {
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) {
    h = fmaf(decay, from_earlier<kLanes, is_adjoint, kBetween>(h, by), h);
    if (2 * by < kLanes) decay *= from_earlier<kLanes, is_adjoint, kBetween>(decay, by);
  }
}

/// Some scans side by side: each fills the time that the others wait.
template <int kLanes, bool is_adjoint, int kBetween = 1, int kCount>
__device__ __forceinline__ void scan_lanes(float (&h)[kCount], float (&decay)[kCount]) {
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      h[c] = fmaf(decay[c], from_earlier<kLanes, is_adjoint, kBetween>(h[c], by), h[c]);
      if (2 * by < kLanes) decay[c] *= from_earlier<kLanes, is_adjoint, kBetween>(decay[c], by);
    }
  }
}

/// The same, one lane after the other, for states that grow: no products of decays, hence no inf * 0. `step(h)` is the
/// state that a lane's steps make of h; the state before a lane's steps comes back, and `h` is the state after them.
template <int kLanes, bool is_adjoint = false, int kBetween = 1, class Steps>
__device__ __forceinline__ float chain_lanes(float carry, int lane, float& h, Steps&& steps) {
  float before = carry;
#pragma unroll 1
  for (int i = 1; i <= kLanes; ++i) {
    h = steps(before);
    const float arriving = from_earlier<kLanes, is_adjoint, kBetween>(h, 1);
    if (lane == i) before = arriving;
  }
  return before;
}

/// own + 2^exponent carry: the exponent may be beyond the range of float, and a carry of 0 stays 0.
__device__ __forceinline__ float carried_over(float own, float carry, float exponent) {
  const float half = exp2_approximate(0.5f * exponent);
  return carry == 0.f ? own : fmaf(carry * half, half, own);
}

/// The sum over the lanes of a channel, in every lane.
template <int kLanes, int kBetween = 1>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) x += __shfl_xor_sync(kWholeWarp, x, by * kBetween);
  return x;
}

/// How fast the states of one channel can grow, in powers of 2 by unit of delta'. Negative steps grow decaying states.
struct GrowthRate {
  float of_positive_steps = 0, of_negative_steps = 0;

  __device__ __forceinline__ void include(float rate) {
    of_positive_steps = fmaxf(of_positive_steps, rate);
    of_negative_steps = fmaxf(of_negative_steps, -rate);
  }
  /// What the lane `by` lanes away has seen.
  __device__ __forceinline__ void include_lane(int by) {
    of_positive_steps = fmaxf(of_positive_steps, __shfl_xor_sync(kWholeWarp, of_positive_steps, by));
    of_negative_steps = fmaxf(of_negative_steps, __shfl_xor_sync(kWholeWarp, of_negative_steps, by));
  }
};

/// Powers of 2 by which products of decays may grow within a tile, such that they stay in the range of float.
constexpr float kSafeGrowth = 64;

/// A bound of the growth in a tile, of which a lane has `step`.
template <int kLanes, int kBetween = 1, int kCount>
__device__ __forceinline__ float growth_of(const GrowthRate& rate, const float (&step)[kCount]) {
  float positive = 0, negative = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    positive += fmaxf(step[i], 0.f);
    negative += fmaxf(-step[i], 0.f);
  }
  return sum_lanes<kLanes, kBetween>(positive * rate.of_positive_steps + negative * rate.of_negative_steps);
}

}  // namespace mamba::kernels::cuda
