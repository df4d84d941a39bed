// The forward for many channels: states live in registers, and each lane walks through time alone.
//
// kLanes lanes share a channel, lane k holding the states k, k + kLanes, ...; a warp has 32 / kLanes channels. Warps
// that do nothing but the recurrence are fed by others: these bring a tile of kSteps steps into shared memory (delta',
// delta' u and u of each warp's channels, B and C for the block) and take what the lanes' states add to y out of it,
// sum and gate it, all while the recurrence is at the tile between. Tiles are double buffered.
#pragma once

#include "cuda/activation_warp.cuh"
#include "cuda/coefficients.cuh"
#include "cuda/handover.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/launch.h"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class T_, class Shape>
struct RegisterTile : Shape {
  using T = T_;
  using Shape::kLanes, Shape::kStates, Shape::kSteps, Shape::kWarps, Shape::kStagers;
  static constexpr int kStagingThreads = kStagers * kWarps * kWarpSize;
  static constexpr int kThreads = kStagingThreads + kWarps * kWarpSize;
  static constexpr int kChannels = kWarpSize / kLanes;  // of a warp
  using Coefficients = CoefficientTile<T, kStates * kLanes, kSteps, false>;
  using Warp = ActivationWarpShared<kChannels, kLanes, kSteps>;

  struct Stager {
    using T = T_;
    using Warp = typename RegisterTile::Warp;
    static constexpr int kLanes = Shape::kLanes, kSteps = Shape::kSteps;
    static constexpr int kChannels = kWarpSize / kLanes / Shape::kStagers;
  };

  struct Shared {
    Handover ready[2], done[2];  // of each buffer: for the recurrence, and by it
    CoefficientStage<Coefficients> coefficients;
    Place place;
    Warp warp[kWarps];
  };
};

/// The states of one lane: those of its channel whose index is `part` modulo kLanes.
template <class Tile>
class LaneStates {
 public:
  __device__ LaneStates(const ForwardTask& task, int chunk, const Place& block_place, int warp_first_channel, int lane)
      : p(task.scan),
        place(block_place),
        first_channel(warp_first_channel),
        part(lane % Tile::kLanes),
        row(lane / Tile::kLanes),
        dstate(first_channel + row < place.channels ? static_cast<int>(p.dstate) : 0) {
    const float* A = static_cast<const float*>(p.A) + channel() * p.dstate;
    const float* initial = static_cast<const float*>(p.initial_state) + state_row();
#pragma unroll
    for (int i = 0; i < Tile::kStates; ++i) {
      rate[i] = index(i) < dstate ? exponent_rate(A[index(i)]) : 0.f;
      h[i] = p.initial_state && index(i) < dstate ? initial[index(i)] : 0.f;
    }
    pass_chunks(task, chunk);
    checkpoint = p.checkpoints ? generic::checkpoint<float>(p, place.sequence, 0, part, channel()) : nullptr;
  }

  /// A tile of which `steps` steps exist.
  __device__ __forceinline__ void sweep(const typename Tile::Coefficients& coefficients,
                                        typename Tile::Warp::Tile& shared, int steps) {
    constexpr int kSection = kCheckpointSpacing;
    static_assert(kSection % (4 * kUnroll) == 0 && Tile::kSteps % kSection == 0);
    const float *steps_of_row = shared.planes[0] + shared.at(row, 0), *inputs = shared.planes[1] + shared.at(row, 0);
    float* y = shared.planes[part] + shared.at(row, 0);
    float4 step = load_float4(steps_of_row), input = load_float4(inputs);
    for (int section = 0; section < Tile::kSteps && section < steps; section += kSection) {
      if (checkpoint) save_checkpoint();
#pragma unroll 1
      for (int i = 0; i < kSection && section + i < steps; i += 4 * kUnroll) {
#pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
          const int t = section + i + 4 * j;
          // The next steps are on their way while these are computed with; what was read is written over.
          const float4 next_step = load_float4(steps_of_row + t + 4), next_input = load_float4(inputs + t + 4);
          __syncwarp();
          four_steps(coefficients, y + t, t, step, input);
          step = next_step;
          input = next_input;
        }
      }
    }
  }

  __device__ __forceinline__ void save_last() const {
    float* last = static_cast<float*>(p.last_state) + state_row();
#pragma unroll
    for (int i = 0; i < Tile::kStates; ++i) {
      if (index(i) < dstate) last[index(i)] = h[i];
    }
  }

 private:
  static constexpr int kUnroll = Tile::kUnroll;

  __device__ __forceinline__ int index(int i) const {
    return i * Tile::kLanes + part;
  }
  __device__ int64_t channel() const {
    return place.channel + first_channel + row;
  }
  __device__ int64_t state_row() const {
    return (place.sequence_index * p.dim + channel()) * p.dstate;
  }

  /// What the chunks before this one, whose carries are known, make of the states.
  __device__ __forceinline__ void pass_chunks(const ForwardTask& task, int chunk) {
    constexpr int kAtOnce = 4;  // waited for together
    const int64_t row_of_chunks = place.sequence_index * task.chunks;
#pragma unroll 1
    for (int first = 0; first < chunk; first += kAtOnce) {
      float exponent[kAtOnce], own[kAtOnce][Tile::kStates];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int states = first + j < chunk ? dstate : 0;
        const float* from = task.chunk_states + (row_of_chunks + first + j) * p.dstate * p.dim + channel();
        exponent[j] = states > 0 ? task.chunk_exponents[(row_of_chunks + first + j) * p.dim + channel()] : 0.f;
#pragma unroll
        for (int i = 0; i < Tile::kStates; ++i) own[j][i] = index(i) < states ? from[index(i) * p.dim] : 0.f;
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
        for (int i = 0; i < Tile::kStates; ++i) h[i] = carried_over(own[j][i], h[i], rate[i] * exponent[j]);
      }
    }
  }

  __device__ __forceinline__ void four_steps(const typename Tile::Coefficients& coefficients, float* y_part, int t,
                                             const float4& step, const float4& input) {
    float y[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < Tile::kStates; ++i) {
      const float4 B = load_float4(&coefficients.B[index(i)][t]), C = load_float4(&coefficients.C[index(i)][t]);
      advance(i, step.x, input.x, B.x, C.x, y[0]);
      advance(i, step.y, input.y, B.y, C.y, y[1]);
      advance(i, step.z, input.z, B.z, C.z, y[2]);
      advance(i, step.w, input.w, B.w, C.w, y[3]);
    }
    store_float4(y_part, y);
  }

  __device__ __forceinline__ void advance(int i, float step, float input, float B, float C, float& y) {
    h[i] = fmaf(exp2_approximate(step * rate[i]), h[i], input * B);
    y = fmaf(C, h[i], y);
  }

  __device__ __forceinline__ void save_checkpoint() {
    float* to = checkpoint;
#pragma unroll
    for (int i = 0; i < Tile::kStates; ++i) {
      if (index(i) < dstate) *to = h[i];
      to += Tile::kLanes * p.dim;
    }
    checkpoint += p.dstate * p.dim;
  }

  const ScanParams& p;
  const Place& place;
  const int first_channel, part, row;
  const int dstate;  // 0 in a lane without a channel
  float rate[Tile::kStates], h[Tile::kStates];
  float* checkpoint;  // of the next section's first state of this lane, if there are any
};

/// What the warps do that feed the others.
template <class Tile, Access access>
__device__ __forceinline__ void stage_tiles(const ScanParams& p, typename Tile::Shared& shared, int warp, int lane) {
  using Stager = typename Tile::Stager;
  constexpr int kSteps = Tile::kSteps;
  const int dstate = static_cast<int>(p.dstate), steps = shared.place.steps;
  ActivationWarp<Stager, access> activations(p, shared.place, shared.warp[warp / Tile::kStagers], lane,
                                             warp * Stager::kChannels, warp % Tile::kStagers * Stager::kChannels);
  activations.fetch(0);
  for (int first = -kSteps, buffer = 1; first < steps + kSteps; first += kSteps, buffer ^= 1) {
    const int next = first + kSteps;
    const bool has_next = next < steps;
    if (has_next) {
      shared.coefficients.template fetch<Tile::kStagingThreads>(buffer ^ 1, 0, dstate, next, steps - next);
    }
    if (first > 0) activations.finish(buffer ^ 1, first - kSteps);
    if (first < 0) activations.keep_constants(lane);
    if (has_next) {
      activations.stage(buffer ^ 1, next);
      shared.coefficients.template arrive<Tile::kStagingThreads>(buffer ^ 1);
      shared.ready[buffer ^ 1].arrive();
    }
    if (first < steps) {
      if (first >= 0) activations.fetch_gate(first);
      activations.fetch(next + kSteps);
      if (first >= 0) shared.done[buffer].await(first / kSteps / 2);
    }
  }
}

/// What the warps do that run the recurrence.
template <class Tile>
__device__ __forceinline__ void scan_tiles(const ForwardTask& task, int chunk, typename Tile::Shared& shared, int warp,
                                           int lane) {
  const Place& place = shared.place;
  LaneStates<Tile> states(task, chunk, place, warp * Tile::kChannels, lane);
  const int steps = place.steps;
  for (int first = 0, buffer = 0; first < steps; first += Tile::kSteps, buffer ^= 1) {
    shared.ready[buffer].await(first / Tile::kSteps / 2);
    states.sweep(shared.coefficients.tile[buffer], shared.warp[warp].tile[buffer], steps - first);
    shared.done[buffer].arrive();
  }
  if (chunk == task.chunks - 1) states.save_last();
}

template <class Tile, Access access>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerProcessor)
    forward_registers_kernel(const __grid_constant__ ForwardTask task) {
  auto& shared = shared_memory<typename Tile::Shared>();
  const ScanParams& p = task.scan;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int64_t block = blockIdx.x;
  int chunk = 0;
  if (task.chunks > 1) {
    const int64_t blocks = p.sequences * task.blocks.count;
    chunk = static_cast<int>(block / blocks);
    block -= chunk * blocks;
  }
  if (threadIdx.x == 0) {
    for (Handover& ready : shared.ready) ready.set(Tile::kStagingThreads);
    for (Handover& done : shared.done) done.set(Tile::kWarps * kWarpSize);
    shared.place = Place(p, task.blocks, block, FewDivisions());
    if (task.chunks > 1) shared.place.enter_chunk(chunk, task.chunk_steps);
    shared.coefficients.set_sources(p, shared.place, FewDivisions());
  }
  __syncthreads();
  constexpr int kStagingWarps = Tile::kStagingThreads / kWarpSize;
  if (warp < kStagingWarps) {
    stage_tiles<Tile, access>(p, shared, warp, lane);
  } else {
    scan_tiles<Tile>(task, chunk, shared, warp - kStagingWarps, lane);
  }
}

template <class T>
Error forward_registers(const ForwardTask& problem, int shape, CUstream_st* stream) {
  return with_shape(RegisterShapes(), shape, [&](auto chosen) {
    using Tile = RegisterTile<T, decltype(chosen)>;
    static_assert(sizeof(typename Tile::Shared) <= Tile::kSharedBytes);
    ForwardTask task = problem;
    const ScanParams& params = task.scan;
    task.blocks = blocks_of_channels(params, Tile::kBlockChannels);
    auto launch_with = [&](auto kernel) {
      return launch(kernel, params.sequences * task.blocks.count * task.chunks, Tile::kThreads,
                    sizeof(typename Tile::Shared), stream, task);
    };
    constexpr bool few_channels = Tile::Stager::kChannels < 4;
    switch (forward_access(params, task.blocks, few_channels)) {
      case Access::kTimeVectors:
        return launch_with(forward_registers_kernel<Tile, Access::kTimeVectors>);
      case Access::kReversedTimeVectors:
        return launch_with(forward_registers_kernel<Tile, Access::kReversedTimeVectors>);
      case Access::kChannelVectors:
        if constexpr (!few_channels) return launch_with(forward_registers_kernel<Tile, Access::kChannelVectors>);
      case Access::kChannelElements:
        return launch_with(forward_registers_kernel<Tile, Access::kChannelElements>);
      default:
        return launch_with(forward_registers_kernel<Tile, Access::kTimeElements>);
    }
  });
}

}  // namespace mamba::kernels::cuda
