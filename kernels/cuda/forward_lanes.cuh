// The forward for few channels: the lanes of a warp share out time.
//
// kLanes lanes hold kLaneSteps consecutive steps each of one channel; a warp has 32 / kLanes channels. State after
// state, each lane runs its steps from 0, a scan over the lanes gives every lane the state it begins with, and the
// steps run again from there. States go by in blocks of kStates, for which B and C pass through shared memory; the
// states at the end of a tile wait there for the next tile.
#pragma once

#include "cuda/lane_tile.cuh"

namespace mamba::kernels::cuda {

/// A thread's steps of its channel.
template <class Tile>
class LaneSteps {
  static constexpr int K = Tile::kLaneSteps;

 public:
  __device__ LaneSteps(const ScanParams& params, const Place& place, typename Tile::Shared& block_shared)
      : p(params), shared(block_shared) {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread % Tile::kLanes;
    row = thread / Tile::kLanes;
    channels = static_cast<int>(blockDim.x) / Tile::kLanes;
    has_channel = row < place.channels;
    channel = place.channel + row;
    bias = p.delta_bias && has_channel ? static_cast<const float*>(p.delta_bias)[channel] : 0.f;
    skip = p.D && has_channel ? static_cast<const float*>(p.D)[channel] : 0.f;
    rates = shared.tail() + row;
    carries = rates + p.dstate * channels;
    for (int64_t n = lane; n < p.dstate; n += Tile::kLanes) {
      const int64_t state = (place.sequence_index * p.dim + channel) * p.dstate + n;
      const float rate = has_channel ? exponent_rate(static_cast<const float*>(p.A)[channel * p.dstate + n]) : 0.f;
      rates[n * channels] = rate;
      growth.include(rate);
      carries[n * channels] = has_channel && p.initial_state ? static_cast<const float*>(p.initial_state)[state] : 0.f;
    }
#pragma unroll
    for (int by = 1; by < Tile::kLanes; by *= 2) growth.include_lane(by);
  }

  /// Takes u and delta of a tile from shared memory. Steps beyond the last one keep the states.
  __device__ __forceinline__ void begin_tile(int first_step, int steps) {
    float u[K];
    shared.delta.read(row, lane * K, step);
    shared.u.read(row, lane * K, u);
    total = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) step[k] += bias;
    if (p.delta_softplus) {
#pragma unroll
      for (int k = 0; k < K; ++k) step[k] = fast_softplus(step[k]);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const bool exists = has_channel && first_step + lane * K + k < steps;
      step[k] = exists ? step[k] : 0.f;
      u[k] = exists ? u[k] : 0.f;
      input[k] = step[k] * u[k];
      y[k] = skip * u[k];
      total += step[k];
    }
    is_growing = __any_sync(kWholeWarp, growth_of<Tile::kLanes>(growth, step) > kSafeGrowth);
  }

  /// Advances `states` states from `first_state` on through the tile. `parity` says which carries are the old ones.
  __device__ __forceinline__ void sweep(const typename Tile::Coefficients& coefficients, int first_state, int states,
                                        int parity, float* checkpoint) {
    if (is_growing) {
      sweep_states<true>(coefficients, first_state, states, parity, checkpoint);
    } else {
      sweep_states<false>(coefficients, first_state, states, parity, checkpoint);
    }
  }

  /// Gates y and leaves it in shared memory.
  __device__ __forceinline__ void end_tile() {
    if (p.z.data) {
      float z[K];
      shared.gate.read(row, lane * K, z);
#pragma unroll
      for (int k = 0; k < K; ++k) y[k] *= z[k] * fast_sigmoid(z[k]);
    }
    shared.gate.write(row, lane * K, y);
  }

  /// Where this lane's checkpoint of a tile goes, if it has one.
  __device__ __forceinline__ float* checkpoint(const Place& place, int first_step) const {
    const int step = first_step + lane * K;
    const bool has_one = p.checkpoints && has_channel && step % kCheckpointSpacing == 0 && step < place.steps;
    return has_one ? generic::checkpoint<float>(p, place.sequence, step / kCheckpointSpacing, 0, channel) : nullptr;
  }

  __device__ void save_last(const Place& place, int parity) const {
    if (!has_channel) return;
    float* last = static_cast<float*>(p.last_state) + (place.sequence_index * p.dim + channel) * p.dstate;
    for (int64_t n = lane; n < p.dstate; n += Tile::kLanes) last[n] = carries[(parity * p.dstate + n) * channels];
  }

 private:
  template <bool growing>
  __device__ __forceinline__ void sweep_states(const typename Tile::Coefficients& coefficients, int first_state,
                                               int states, int parity, float* checkpoint) {
    const int between = static_cast<int>(p.dstate) * channels;
    const float* rate = rates + first_state * channels;
    const float* carry = carries + parity * between + first_state * channels;
    float* next_carry = carries + (parity ^ 1) * between + first_state * channels;
    const float* rows = &coefficients.B[0][Tile::Coefficients::column(lane * K)];
    const bool has_checkpoint = checkpoint != nullptr;
#pragma unroll(growing ? 1 : 2)
    for (int i = 0; i < states; ++i) {
      float a[K], whole, b[K];
      decays(*rate, a, whole);
      load_row(rows, b);
#pragma unroll
      for (int k = 0; k < K; ++k) b[k] *= input[k];

      float h = state_before<growing>(a, b, whole, *carry, next_carry);
      if (has_checkpoint) *checkpoint = h;
      float c[K];
      load_row(rows + Tile::kStates * Tile::Coefficients::kPitch, c);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        h = fmaf(a[k], h, b[k]);
        y[k] = fmaf(c[k], h, y[k]);
      }
      rate += channels;
      rows += Tile::Coefficients::kPitch;
      carry += channels;
      next_carry += channels;
      checkpoint += p.dim;
    }
  }

  __device__ __forceinline__ void decays(float rate, float (&a)[K], float& whole) const {
#pragma unroll
    for (int k = 0; k < K; ++k) a[k] = exp2_approximate(step[k] * rate);
    whole = exp2_approximate(total * rate);
  }

  static __device__ __forceinline__ void load_row(const float* from, float (&x)[K]) {
#pragma unroll
    for (int k = 0; k < K; k += 4) {
      const float4 four = load_float4(from + k);
      x[k] = four.x, x[k + 1] = four.y, x[k + 2] = four.z, x[k + 3] = four.w;
    }
  }

  static __device__ __forceinline__ float run(const float (&a)[K], const float (&b)[K], float h) {
#pragma unroll
    for (int k = 0; k < K; ++k) h = fmaf(a[k], h, b[k]);
    return h;
  }

  /// The state before this lane's steps; the last lane leaves the one after the tile for the next tile.
  template <bool growing>
  __device__ __forceinline__ float state_before(const float (&a)[K], const float (&b)[K], float whole, float carry,
                                                float* next_carry) const {
    float before, after;
    if constexpr (growing) {
      before = chain_lanes<Tile::kLanes>(carry, lane, after, [&](float h) { return run(a, b, h); });
    } else {
      after = run(a, b, 0.f);
      if (lane == 0) after = fmaf(whole, carry, after);
      scan_lanes<Tile::kLanes>(after, lane == 0 ? 0.f : whole);
      before = from_earlier<Tile::kLanes, false>(after, 1);
      if (lane == 0) before = carry;
    }
    if (lane == Tile::kLanes - 1) *next_carry = after;
    return before;
  }

  const ScanParams& p;
  typename Tile::Shared& shared;
  int lane, row, channels;
  int64_t channel;
  bool has_channel, is_growing;
  float bias, skip, total;
  float *rates, *carries;
  GrowthRate growth;
  float step[K], input[K], y[K];
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kMostWarps* kWarpSize, Tile::kBlocksPerProcessor)
    forward_lanes_kernel(const __grid_constant__ ForwardTask task) {
  using T = typename Tile::T;
  auto& shared = shared_memory<typename Tile::Shared>();
  const ScanParams& p = task.scan;
  const Place& place = shared.place;
  const int threads = static_cast<int>(blockDim.x), rows = threads / Tile::kLanes, dstate = static_cast<int>(p.dstate);
  if (threadIdx.x == 0) {
    shared.place = Place(p, task.blocks, blockIdx.x);
    shared.coefficients.set_sources(p, place);
    shared.u_source = activation_source<T, Tile::kSteps>(p.u, place);
    shared.delta_source = activation_source<T, Tile::kSteps>(p.delta, place);
    shared.z_source = activation_source<T, Tile::kSteps>(p.z, place);
    shared.out_source = activation_source<T, Tile::kSteps>(p.out, place);
  }
  __syncthreads();
  LaneSteps<Tile> lane(p, place, shared);

  auto fetch_inputs = [&](int first) {
    shared.u.fetch(shared.u_source, place, first, rows, threads);
    shared.delta.fetch(shared.delta_source, place, first, rows, threads);
  };
  auto fetch_coefficients = [&](int buffer, int first_state, int first) {
    shared.coefficients.fetch(buffer, first_state, dstate - first_state, first, place.steps - first, threads);
  };
  fetch_inputs(0);
  fetch_coefficients(0, 0, 0);
  int buffer = 0, parity = 0;
  for (int first = 0; first < place.steps; first += Tile::kSteps, parity ^= 1) {
    const int next = first + Tile::kSteps;
    float* checkpoint = lane.checkpoint(place, first);
    for (int n = 0; n < dstate; n += Tile::kStates, buffer ^= 1) {
      shared.coefficients.arrive(buffer, threads);
      __syncthreads();  // what this stage needs is there, and nobody reads what the last one needed
      if (n == 0) {
        lane.begin_tile(first, place.steps);
        __syncthreads();  // u and delta have been read
        if (next < place.steps) fetch_inputs(next);
        if (p.z.data) shared.gate.fetch(shared.z_source, place, first, rows, threads);
      }
      if (n + Tile::kStates < dstate) {
        fetch_coefficients(buffer ^ 1, n + Tile::kStates, first);
      } else if (next < place.steps) {
        fetch_coefficients(buffer ^ 1, 0, next);
      }
      const int states = dstate - n < Tile::kStates ? dstate - n : Tile::kStates;
      lane.sweep(shared.coefficients.tile[buffer], n, states, parity, checkpoint);
      if (checkpoint) checkpoint += Tile::kStates * p.dim;
    }
    copies_arrived();
    __syncthreads();  // z is there
    lane.end_tile();
    __syncthreads();  // and out as well
    shared.gate.store(shared.out_source, place, first, rows, threads);
  }
  __syncwarp();
  lane.save_last(place, parity);
}

template <class T>
Error forward_lanes(const ScanParams& params, const LaneChoice& choice, CUstream_st* stream) {
  return with_shape(LaneShapes(), choice.shape, [&](auto chosen) {
    using Tile = LaneTile<T, decltype(chosen)>;
    static_assert(sizeof(typename Tile::Shared) <= lane_shared_memory(Tile::kLanes == 32 ? 0 : 1, 0, 0));
    const int channels = choice.warps * Tile::kWarpChannels;
    const ForwardTask task{params, blocks_of_channels(params, channels)};
    return launch(forward_lanes_kernel<Tile>, params.sequences * task.blocks.count, choice.warps * kWarpSize,
                  Tile::shared_bytes(params.dstate, channels), stream, task);
  });
}

}  // namespace mamba::kernels::cuda
