// The backward. Tiles of steps go by from the last to the first, and in each tile the states of the recurrence are
// computed again from the checkpoint that the forward left at the tile's beginning.
//
// As in forward_lanes.cuh the lanes of a warp share out time: kLanes lanes hold 8 consecutive steps each, of two
// neighbouring channels. State after state, the recurrence runs forward and its adjoint backward through the lane's
// steps, two scans give each lane what it begins with on both sides, and both run again from there:
//
//   h_t = a_t h_{t-1} + dt_t u_t B_t        g_t = C_t dy_t + r_t      r_{t-1} = a_t g_t
//   y += C h   dC += dy h   dB += g dt u   S += g B   q = r_{t-1} h_{t-1}   dA += dt q   ddt += A q
//
// Sums over channels go through shared memory to one slice of the workspace for each block of channels; nothing is
// atomic, so every sum has one order.
#pragma once

#include "cuda/backward_lane.cuh"
#include "cuda/launch.h"

namespace mamba::kernels::cuda {

/// The states at the beginning of a tile, from its checkpoint; zeros for channels that do not exist, which have a part
/// in the sums over channels.
template <class Tile>
__device__ __forceinline__ void fetch_entry_states(typename Tile::Shared& shared, int buffer, const ScanParams& p,
                                                   int first_state, int first_step) {
  constexpr int kPerRow = Tile::kChannels / 4, kRows = Tile::kThreads / kPerRow;
  static_assert(Tile::kThreads % kPerRow == 0);
  const Place& place = shared.place;
  const int states = static_cast<int>(p.dstate) - first_state, channels = place.channels;
  const int first = static_cast<int>(threadIdx.x) / kPerRow, channel = static_cast<int>(threadIdx.x) % kPerRow * 4;
  const float* from = generic::checkpoint<float>(p, place.sequence, first_step / kCheckpointSpacing,
                                                 first_state + first, place.channel + channel);
  const bool is_vector = p.dim % 4 == 0 && place.channel % 4 == 0 && channels % 4 == 0;
#pragma unroll
  for (int i = 0; i < Tile::kStates; i += kRows, from += kRows * p.dim) {
    if (first + i >= states || (Tile::kStates % kRows != 0 && first + i >= Tile::kStates)) continue;
    float* to = &shared.entry[buffer][first + i][channel];
    if (is_vector) {
      if (channel < channels) {
        copy_async<16>(to, from);
      } else {
        store_float4(to, {0.f, 0.f, 0.f, 0.f});
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (channel + j < channels) {
        copy_async<4>(to + j, from + j);
      } else {
        to[j] = 0;
      }
    }
  }
}

/// Sums dB and dC of a stage's states over the warps, into the block's slice of the workspace.
template <class Tile>
__device__ __forceinline__ void store_coefficient_sums(const typename Tile::Shared& shared, int first_state, int states,
                                                       int first_step) {
  constexpr int kPerState = 4 * Tile::kLanes, kAtOnce = Tile::kThreads / kPerState;
  static_assert(Tile::kThreads % kPerState == 0 && Tile::kStates % kAtOnce == 0);
  const int first = static_cast<int>(threadIdx.x) / kPerState, r = static_cast<int>(threadIdx.x) % kPerState;
  const int quad = r / Tile::kLanes, step = first_step + r % Tile::kLanes * Tile::kLaneSteps + quad % 2 * 4;
  const CoefficientSums to = quad < 2 ? shared.dB : shared.dC;
  float4 sums[Tile::kStates / kAtOnce];
#pragma unroll
  for (int i = 0; i < Tile::kStates / kAtOnce; ++i) {
    const int slot = first + i * kAtOnce + 1;
    sums[i] = load_float4(&shared.warp_sums[0][slot][4 * r]);
#pragma unroll
    for (int warp = 1; warp < Tile::kWarps; ++warp) {
      const float4 x = load_float4(&shared.warp_sums[warp][slot][4 * r]);
      sums[i].x += x.x, sums[i].y += x.y, sums[i].z += x.z, sums[i].w += x.w;
    }
  }
  if (!to.origin) return;
#pragma unroll
  for (int i = 0; i < Tile::kStates / kAtOnce; ++i) {
    const int state = first + i * kAtOnce;
    if (state < states) to.store(first_state + state, step, sums[i], shared.place.steps - step);
  }
}

/// One chunk of the sequence at shared.place, last tile to first.
template <class Tile>
__device__ __forceinline__ void backward_chunk(const BackwardTask& task, int chunk, typename Tile::Shared& shared,
                                               AdjointLane<Tile>& lane) {
  const ScanParams& p = task.grad.scan;
  const int dstate = static_cast<int>(p.dstate), begin = chunk * task.chunk_steps;
  const int left = shared.place.steps - begin;
  if (warp_agrees(left <= 0 && chunk > 0)) return;
  const int steps = task.chunks > 1 && left > task.chunk_steps ? task.chunk_steps : left;
  const bool has_sums = task.dB_sums || task.dC_sums;
  auto fetch = [&](int buffer, int first_state, int first) {
    shared.coefficients.template fetch<Tile::kThreads>(buffer, first_state, dstate - first_state, first,
                                                       shared.place.steps - first);
    fetch_entry_states<Tile>(shared, buffer, p, first_state, first);
  };
  int buffer = 0, first = begin + (steps - 1) / Tile::kSteps * Tile::kSteps;
  if (steps > 0) {
    if (!Tile::kLoadsLate) lane.fetch(first);
    fetch(0, 0, first);
  }
  lane.begin_sequence(task, chunk);
#pragma unroll 1
  for (int tiles = (steps + Tile::kSteps - 1) / Tile::kSteps; warp_agrees(tiles > 0); --tiles, first -= Tile::kSteps) {
    if (Tile::kLoadsLate) lane.fetch(first);
    lane.begin_tile(first);
    if (Tile::kLoadsLate && tiles > 1) lane.prefetch(first - Tile::kSteps);
    int n = 0, states = 0;
#pragma unroll 1
    while (true) {
      shared.coefficients.template arrive<Tile::kThreads>(buffer);
      __syncthreads();  // what this stage needs is there, and nobody reads what the last one needed
      if (n > 0 && has_sums) {
        store_coefficient_sums<Tile>(shared, n - Tile::kStates, Tile::kStates, first);
        __syncthreads();  // the sums have been read
      }
      const bool is_last = n + Tile::kStates >= dstate;
      if (!is_last || tiles > 1) {
        fetch(buffer ^ 1, is_last ? 0 : n + Tile::kStates, is_last ? first - Tile::kSteps : first);
      }
      states = is_last ? dstate - n : Tile::kStates;
      lane.sweep(buffer, n, states);
      buffer ^= 1;
      if (is_last) break;
      n += Tile::kStates;
    }
    if (!Tile::kLoadsLate && tiles > 1) lane.fetch(first - Tile::kSteps);
    if (has_sums) {
      __syncthreads();  // the sums of all warps are there
      store_coefficient_sums<Tile>(shared, n, states, first);
    }
    lane.end_tile(first);
  }
  __syncwarp();
  if (chunk == 0) lane.end_sequence();
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerProcessor)
    backward_kernel(const __grid_constant__ BackwardTask task) {
  auto& shared = shared_memory<typename Tile::Shared>();
  const int64_t block = blockIdx.x % task.blocks.count, part = blockIdx.x / task.blocks.count;
  const int chunk = static_cast<int>(part % task.chunks);
  AdjointLane<Tile> lane(task.grad, task.blocks.channels(block), shared);
  const int64_t begin = part / task.chunks * task.sequences_per_block, end = begin + task.sequences_per_block;
  for (int64_t index = begin; index < end && index < task.grad.scan.sequences; ++index) {
    __syncthreads();  // nobody is at the sequence before any more
    if (threadIdx.x < kWarpSize) {
      if (threadIdx.x == 0) shared.place = Place(task.grad.scan, task.blocks, index * task.blocks.count + block);
      __syncwarp();
      shared.set_planes(task.grad);
    } else if (threadIdx.x == kWarpSize) {
      const Place place(task.grad.scan, task.blocks, index * task.blocks.count + block);
      shared.coefficients.set_sources(task.grad.scan, place);
    } else if (threadIdx.x == 2 * kWarpSize) {
      const Place place(task.grad.scan, task.blocks, index * task.blocks.count + block);
      shared.dB = CoefficientSums(task.dB_sums, task, task.grad.scan.B, place, block);
      shared.dC = CoefficientSums(task.dC_sums, task, task.grad.scan.C, place, block);
    }
    __syncthreads();
    backward_chunk<Tile>(task, chunk, shared, lane);
  }
  lane.store_channel_sums(task, part);
}

template <class T>
Error backward_lanes(const BackwardTask& task, int shape, CUstream_st* stream) {
  return with_shape(BackwardShapes(), shape, [&](auto chosen) {
    return with_pair_access(pair_access(task.grad, task.blocks), [&](auto access) {
      using Tile = BackwardTile<T, decltype(chosen), decltype(access)::value>;
      constexpr int kShape = shape_index<decltype(chosen)>(BackwardShapes());
      static_assert(Tile::shared_bytes(16) <= backward_shared_memory(kShape, 16) &&
                    Tile::shared_bytes(256) <= backward_shared_memory(kShape, 256));
      return launch(backward_kernel<Tile>, task.parts * task.blocks.count, Tile::kThreads,
                    Tile::shared_bytes(task.grad.scan.dstate), stream, task);
    });
  });
}

}  // namespace mamba::kernels::cuda
