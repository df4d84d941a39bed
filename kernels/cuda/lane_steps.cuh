// The recurrence of a block whose lanes share out time.
#pragma once

#include "cuda/lane_scan.cuh"
#include "cuda/place.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

/// A thread's steps of its channel.
template <class Tile>
class LaneSteps {
  static constexpr int K = Tile::kLaneSteps, kBetween = Tile::kWarpChannels, kParts = Tile::kParts;
  using Coefficients = typename Tile::Coefficients;

 public:
  __device__ LaneSteps(const ForwardLaneTask& task, const Place& place, typename Tile::Shared& shared)
      : p(task.scan), channels(task.channels) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
    lane = thread % kWarpSize / kBetween;
    part = warp % kParts;
    const int row = warp / kParts * kBetween + thread % kBetween;
    has_channel = row < place.channels;
    channel = place.channel + row;
    inputs = shared.rows() + row;
    y_sums = &shared.sums(task)[part * channels + row].y[skewed<float>(lane * K)];
    rates = shared.states(task) + row;
    carries = rates + p.dstate * channels;
    GrowthRate growth_rate;
    for (int64_t n = lane; n < p.dstate; n += Tile::kLanes) {
      const int64_t state = (place.sequence_index * p.dim + channel) * p.dstate + n;
      const float rate = has_channel ? exponent_rate(static_cast<const float*>(p.A)[channel * p.dstate + n]) : 0.f;
      growth_rate.include(rate);
      if (part > 0) continue;
      rates[n * channels] = rate;
      carries[n * channels] = has_channel && p.initial_state ? static_cast<const float*>(p.initial_state)[state] : 0.f;
    }
#pragma unroll
    for (int by = kBetween; by < kWarpSize; by *= 2) growth_rate.include_lane(by);
    growth = growth_rate;
    may_grow = __any_sync(kWholeWarp, growth.of_positive_steps > 0) || !p.delta_softplus;
  }

  /// Takes delta' and delta' u of a tile from shared memory.
  __device__ __forceinline__ void begin_tile() {
    read(inputs->step, step);
    read(inputs->input, input);
    total = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      y[k] = 0;
      total += step[k];
    }
    is_growing = may_grow && __any_sync(kWholeWarp, growth_of<Tile::kLanes, kBetween>(growth, step) > kSafeGrowth);
  }

  /// Advances this warp's share of `states` states from `first_state` on through the tile. `parity` says which carries
  /// are the old ones.
  __device__ __forceinline__ void sweep(const Coefficients& coefficients, int first_state, int states, int parity,
                                        float* checkpoint) {
    const int share = (states + kParts - 1) / kParts, begin = part * share;
    const int end = begin + share < states ? begin + share : states;
    if (begin >= end) return;
    const int64_t at = static_cast<int64_t>(first_state + begin) * channels, between = p.dstate * channels;
    Cursor cursor{rates + at, carries + parity * between + at, carries + (parity ^ 1) * between + at,
                  &coefficients.B[begin][Coefficients::column(lane * K)],
                  checkpoint ? checkpoint + (first_state + begin) * p.dim : nullptr};
    if (is_growing) {
      sweep_states<true>(cursor, end - begin);
    } else {
      sweep_states<false>(cursor, end - begin);
    }
  }

  /// Leaves what the states added to y in shared memory.
  __device__ __forceinline__ void end_tile() const {
#pragma unroll
    for (int k = 0; k < K; k += 4) store_float4(y_sums + k, {y[k], y[k + 1], y[k + 2], y[k + 3]});
  }

  /// Where this lane's checkpoint of a tile goes, if it has one.
  __device__ __forceinline__ float* checkpoint(const Place& place, int first_step) const {
    const int at = first_step + lane * K;
    const bool has_one = p.checkpoints && has_channel && at % kCheckpointSpacing == 0 && at < place.steps;
    return has_one ? generic::checkpoint<float>(p, place.sequence, at / kCheckpointSpacing, 0, channel) : nullptr;
  }

  __device__ void save_last(const Place& place, int parity) const {
    if (!has_channel || part > 0) return;
    float* last = static_cast<float*>(p.last_state) + (place.sequence_index * p.dim + channel) * p.dstate;
    for (int64_t n = lane; n < p.dstate; n += Tile::kLanes) last[n] = carries[(parity * p.dstate + n) * channels];
  }

 private:
  /// What belongs to the state at hand.
  struct Cursor {
    const float *rate, *carry;
    float* next_carry;
    const float* B;
    float* checkpoint;

    __device__ __forceinline__ void advance(int channels, int64_t dim, int states) {
      rate += states * channels;
      carry += states * channels;
      next_carry += states * channels;
      B += states * Coefficients::kPitch;
      checkpoint += states * dim;
    }
  };

  template <bool growing>
  __device__ __forceinline__ void sweep_states(Cursor at, int states) {
    const bool has_checkpoint = at.checkpoint != nullptr;
    if constexpr (!growing) {
      for (; states >= 2; states -= 2) {
        sweep_together<2, growing>(at, has_checkpoint);
        at.advance(channels, p.dim, 2);
      }
    }
    for (; states > 0; --states) {
      sweep_together<1, growing>(at, has_checkpoint);
      at.advance(channels, p.dim, 1);
    }
  }

  /// kCount states side by side: each fills the time that the other waits.
  template <int kCount, bool growing>
  __device__ __forceinline__ void sweep_together(const Cursor& at, bool has_checkpoint) {
    float a[kCount][K], b[kCount][K], h[kCount], whole[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float rate = at.rate[i * channels];
      load_row(at.B + i * Coefficients::kPitch, b[i]);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        a[i][k] = exp2_approximate(step[k] * rate);
        b[i][k] *= input[k];
      }
      whole[i] = exp2_approximate(total * rate);
    }
    if constexpr (growing) {
      h[0] = state_before_growing(a[0], b[0], *at.carry, at.next_carry);
    } else {
      states_before(a, b, whole, at, h);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (has_checkpoint) at.checkpoint[i * p.dim] = h[i];
      float c[K];
      load_row(at.B + (Tile::kStates + i) * Coefficients::kPitch, c);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        h[i] = fmaf(a[i][k], h[i], b[i][k]);
        y[k] = fmaf(c[k], h[i], y[k]);
      }
    }
  }

  /// The states before this lane's steps; the last lane leaves those after the tile for the next tile.
  template <int kCount>
  __device__ __forceinline__ void states_before(const float (&a)[kCount][K], const float (&b)[kCount][K],
                                                float (&whole)[kCount], const Cursor& at, float (&h)[kCount]) const {
    const bool is_first = lane == 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) h[i] = b[i][0];
#pragma unroll
    for (int k = 1; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) h[i] = fmaf(a[i][k], h[i], b[i][k]);
    }
    float carry[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      carry[i] = at.carry[i * channels];
      if (is_first) h[i] = fmaf(whole[i], carry[i], h[i]);
      if (is_first) whole[i] = 0;
    }
    scan_lanes<Tile::kLanes, false, kBetween>(h, whole);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (lane == Tile::kLanes - 1) at.next_carry[i * channels] = h[i];
      h[i] = from_earlier<Tile::kLanes, false, kBetween>(h[i], 1);
      if (is_first) h[i] = carry[i];
    }
  }

  __device__ __forceinline__ float state_before_growing(const float (&a)[K], const float (&b)[K], float carry,
                                                        float* next_carry) const {
    float after;
    const float before = chain_lanes<Tile::kLanes, false, kBetween>(carry, lane, after, [&](float h) {
#pragma unroll
      for (int k = 0; k < K; ++k) h = fmaf(a[k], h, b[k]);
      return h;
    });
    if (lane == Tile::kLanes - 1) *next_carry = after;
    return before;
  }

  static __device__ __forceinline__ void load_row(const float* from, float (&x)[K]) {
#pragma unroll
    for (int k = 0; k < K; k += 4) {
      const float4 four = load_float4(from + k);
      x[k] = four.x, x[k + 1] = four.y, x[k + 2] = four.z, x[k + 3] = four.w;
    }
  }
  template <int kPitch>
  __device__ __forceinline__ void read(const float (&row)[kPitch], float (&x)[K]) const {
    load_row(&row[skewed<float>(lane * K)], x);
  }

  const ScanParams& p;
  const int channels;
  int lane, part;
  int64_t channel;
  bool has_channel, may_grow, is_growing;
  const typename Tile::Row* inputs;
  float *y_sums, *rates, *carries;
  GrowthRate growth;
  float step[K], input[K], y[K], total;
};

}  // namespace mamba::kernels::cuda
