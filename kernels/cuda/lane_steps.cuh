// The recurrence of a warp whose lanes share out time.
#pragma once

#include "cuda/lane_carry.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/place.cuh"

namespace mamba::kernels::cuda {

/// What a block knows of its states, by state and channel.
struct LaneStates {
  int channels = 0;              // that the block has room for
  LaneCarry* carries = nullptr;  // of each slice, then by state and channel
  float* rates = nullptr;
};

/// A thread's steps of its channel.
template <class Tile>
class LaneSteps {
  static constexpr int K = Tile::kLaneSteps, kBetween = Tile::kWarpChannels, kSlices = Tile::kSlices;
  using Coefficients = typename Tile::Coefficients;

 public:
  /// `row`: of the block's channels; `slice`: which of the warps that take turns at the tiles of these channels this
  /// is.
  __device__ LaneSteps(const ScanParams& p_, const Place& place, const LaneStates& states, int row, int slice)
      : p(p_),
        channels(states.channels),
        lane(static_cast<int>(threadIdx.x) % kWarpSize / kBetween),
        has_channel(row < place.channels),
        channel(place.channel + row),
        rates(states.rates + row) {
    const int64_t between = p.dstate * channels;
    carries = states.carries + slice * between + row;
    earlier_carries = states.carries + (slice + kSlices - 1) % kSlices * between + row;
    GrowthRate growth_rate;
    for (int64_t n = lane; n < p.dstate; n += Tile::kLanes) growth_rate.include(rates[n * channels]);
#pragma unroll
    for (int by = kBetween; by < kWarpSize; by *= 2) growth_rate.include_lane(by);
    growth = growth_rate;
    may_grow = __any_sync(kWholeWarp, growth.of_positive_steps > 0) || !p.delta_softplus;
  }

  /// To be called when `step`, `input` and `y` of a tile are there.
  __device__ __forceinline__ void begin_tile(int tile_) {
    tile = tile_;
    total = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) total += step[k];
    // A shuffle that moves nothing: a sum of registers the assembler forms again for every state, where they are
    // scarce.
    total = __shfl_xor_sync(kWholeWarp, total, 0);
    is_growing = may_grow && __any_sync(kWholeWarp, growth_of<Tile::kLanes, kBetween>(growth, step) > kSafeGrowth);
  }

  /// Advances `states` states from `first_state` on through the tile.
  __device__ __forceinline__ void sweep(const Coefficients& coefficients, int first_state, int states,
                                        float* checkpoint) {
    const int64_t at = static_cast<int64_t>(first_state) * channels;
    Cursor cursor{rates + at, earlier_carries + at, carries + at, &coefficients.B[0][Coefficients::column(lane * K)],
                  checkpoint ? checkpoint + first_state * p.dim : nullptr};
    if (is_growing) {
      sweep_growing_states(cursor, states);
    } else {
      sweep_states(cursor, states);
    }
  }

  /// Where this lane's checkpoint of a tile goes, if it has one.
  __device__ __forceinline__ float* checkpoint(const Place& place, int first_step) const {
    const int at = first_step + lane * K;
    const bool has_one = p.checkpoints && has_channel && at % kCheckpointSpacing == 0 && at < place.steps;
    return has_one ? generic::checkpoint<float>(p, place.sequence, at / kCheckpointSpacing, 0, channel) : nullptr;
  }

  /// By the warps that had the last tile.
  __device__ void save_last(const Place& place) const {
    __syncwarp();
    if (!has_channel) return;
    float* last = static_cast<float*>(p.last_state) + (place.sequence_index * p.dim + channel) * p.dstate;
    for (int64_t n = lane; n < p.dstate; n += Tile::kLanes) last[n] = carries[n * channels].state;
  }

  float step[K], input[K], y[K];  // delta', delta' u, y

 private:
  /// What belongs to the state at hand.
  struct Cursor {
    const float* rate;
    const LaneCarry* carry;
    LaneCarry* next_carry;
    const float* B;
    float* checkpoint;

    __device__ __forceinline__ Cursor next(int channels, int64_t dim) const {
      return {rate + channels, carry + channels, next_carry + channels, B + Coefficients::kPitch, checkpoint + dim};
    }
  };

  /// One state's decays and inputs, step by step, and the product of the decays.
  struct Terms {
    float a[K], b[K], whole;
  };

  /// Two states at a time. A state's terms are formed while the one before it waits for its shuffles.
  __device__ __forceinline__ void sweep_states(Cursor at, int states) {
    const bool has_checkpoint = at.checkpoint != nullptr;
    Terms even = terms_of(at);
#pragma unroll 1
    for (; states > 2; states -= 2) {
      const Cursor second = at.next(channels, p.dim);
      const Carries carries = await(at, second);
      const Terms odd = terms_of(second);
      finish_state(at, state_before(at, even, carries.first), even, has_checkpoint);
      at = second.next(channels, p.dim);
      even = terms_of(at);
      finish_state(second, state_before(second, odd, carries.second), odd, has_checkpoint);
    }
    if (states == 2) {
      const Cursor second = at.next(channels, p.dim);
      const Carries carries = await(at, second);
      const Terms odd = terms_of(second);
      finish_state(at, state_before(at, even, carries.first), even, has_checkpoint);
      finish_state(second, state_before(second, odd, carries.second), odd, has_checkpoint);
    } else {
      finish_state(at, state_before(at, even, await(at, at).first), even, has_checkpoint);
    }
  }
  __device__ __forceinline__ void sweep_growing_states(Cursor at, int states) {
    const bool has_checkpoint = at.checkpoint != nullptr;
#pragma unroll 1
    for (; states > 0; --states) {
      const Terms terms = terms_of(at);
      finish_state(at, state_before_growing(at, terms), terms, has_checkpoint);
      at = at.next(channels, p.dim);
    }
  }

  /// The states before the tile, of two states of the channel, from whoever had the tile before.
  struct Carries {
    float first, second;
  };
  __device__ __forceinline__ Carries await(const Cursor& first, const Cursor& second) const {
    LaneCarry one, two;
    do {
      one = first.carry->seen(), two = second.carry->seen();
    } while (one.after != tile - 1 || two.after != tile - 1);
    __syncwarp();  // the compiler then knows that the lanes go on together
    return {one.state, two.state};
  }

  __device__ __forceinline__ Terms terms_of(const Cursor& at) const {
    Terms x;
    float rate = *at.rate;
    keep(rate);
    load_row(at.B, x.b);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      x.a[k] = exp2_approximate(step[k] * rate);
      x.b[k] *= input[k];
    }
    x.whole = exp2_approximate(total * rate);
    return x;
  }

  /// The state before this lane's steps; the last lane leaves that after the tile for whoever has the next one.
  __device__ __forceinline__ float state_before(const Cursor& at, const Terms& x, float carry) const {
    const bool is_first = lane == 0;
    float h = x.b[0];
#pragma unroll
    for (int k = 1; k < K; ++k) h = fmaf(x.a[k], h, x.b[k]);
    if (is_first) h = fmaf(x.whole, carry, h);
    scan_lanes<Tile::kLanes, false, kBetween>(h, is_first ? 0.f : x.whole);
    if (lane == Tile::kLanes - 1) at.next_carry->publish(h, tile);
    h = from_earlier<Tile::kLanes, false, kBetween>(h, 1);
    return is_first ? carry : h;
  }
  __device__ __forceinline__ float state_before_growing(const Cursor& at, const Terms& x) const {
    float after;
    const float carry = await(at, at).first;
    const float before = chain_lanes<Tile::kLanes, false, kBetween>(carry, lane, after, [&](float h) {
#pragma unroll
      for (int k = 0; k < K; ++k) h = fmaf(x.a[k], h, x.b[k]);
      return h;
    });
    if (lane == Tile::kLanes - 1) at.next_carry->publish(after, tile);
    return before;
  }

  __device__ __forceinline__ void finish_state(const Cursor& at, float h, const Terms& x, bool has_checkpoint) {
    if (has_checkpoint) *at.checkpoint = h;
    float c[K];
    load_row(at.B + Tile::kStates * Coefficients::kPitch, c);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      h = fmaf(x.a[k], h, x.b[k]);
      y[k] = fmaf(c[k], h, y[k]);
    }
  }

  static __device__ __forceinline__ void load_row(const float* from, float (&x)[K]) {
#pragma unroll
    for (int k = 0; k < K; k += 4) {
      const float4 four = load_float4(from + k);
      x[k] = four.x, x[k + 1] = four.y, x[k + 2] = four.z, x[k + 3] = four.w;
    }
  }

  const ScanParams& p;
  const int channels, lane;
  const bool has_channel;
  const int64_t channel;
  const float* const rates;
  LaneCarry* carries;
  const LaneCarry* earlier_carries;
  GrowthRate growth;
  bool may_grow, is_growing;
  int tile;
  float total;
};

}  // namespace mamba::kernels::cuda
