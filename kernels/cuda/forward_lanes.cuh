// The forward for few channels: the lanes of a warp share out time, and so do warps.
//
// kLanes lanes hold kLaneSteps consecutive steps each of one channel, a tile; a warp has 32 / kLanes channels,
// neighbouring lanes, so that they read the same B and C. State after state, each lane runs its steps from 0, a scan
// over the lanes gives every lane the state it begins with, and the steps run again from there. kSlices warps take
// turns at the tiles of the same channels: a warp needs of the one before it only a state at a time, so it follows a
// state or two behind. The warps of one slice of time are a team, which shares B and C; teams do not wait for each
// other.
#pragma once

#include "cuda/coefficients.cuh"
#include "cuda/lane_rows.cuh"
#include "cuda/lane_steps.cuh"
#include "cuda/launch.h"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class T_, class Shape>
struct ForwardLaneTile : Shape {
  using T = T_;
  using Shape::kLanes, Shape::kLaneSteps, Shape::kStates, Shape::kSlices, Shape::kWarpChannels;
  static constexpr int kSteps = kLanes * kLaneSteps;
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Rows = LaneRows<T, kSteps, kLaneSteps, kWarpChannels>;

  struct Shared {
    CoefficientStage<Coefficients> coefficients[kSlices];
    Place place;
    LaneSources<T, kSteps> sources;

    /// Behind the rest: rows for each warp, then carries of each slice and rates, by state and channel.
    __device__ Rows* rows() { return reinterpret_cast<Rows*>(this + 1); }
    __device__ LaneStates states(const ForwardLaneTask& task) {
      LaneStates states;
      states.channels = task.channels;
      states.carries = reinterpret_cast<LaneCarry*>(rows() + kSlices * task.channels / kWarpChannels);
      states.rates = reinterpret_cast<float*>(states.carries + kSlices * task.scan.dstate * task.channels);
      return states;
    }
  };
  static_assert(sizeof(Rows) <= Shape::row_bytes(sizeof(T)) && sizeof(Shared) <= Shape::coefficient_bytes(sizeof(T)));
  static size_t bytes(int64_t dstate, int groups) {
    return sizeof(Shared) + static_cast<size_t>(groups) * kSlices * sizeof(Rows) +
           static_cast<size_t>(groups * kWarpChannels * dstate) * (kSlices * sizeof(LaneCarry) + sizeof(float));
  }
};

/// Rates, and initial states for the first tile.
template <class Tile>
__device__ void begin_states(const ScanParams& p, const Place& place, const LaneStates& states) {
  const int dstate = static_cast<int>(p.dstate), all = dstate * states.channels;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const int row = i / dstate, n = i % dstate, at = n * states.channels + row;
    const bool exists = row < place.channels;
    const int64_t channel = place.channel + row, state = (place.sequence_index * p.dim + channel) * p.dstate + n;
    const float A = exists ? static_cast<const float*>(p.A)[channel * p.dstate + n] : 0.f;
    const float initial = exists && p.initial_state ? static_cast<const float*>(p.initial_state)[state] : 0.f;
    states.rates[at] = exponent_rate(A);
#pragma unroll
    for (int slice = 0; slice < Tile::kSlices; ++slice) {
      const bool is_last = slice == Tile::kSlices - 1;
      states.carries[slice * all + at] = {initial, is_last ? LaneCarry::kInitial : LaneCarry::kNothing};
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kMostWarps* kWarpSize, Tile::kBlocksPerProcessor)
    forward_lanes_kernel(const __grid_constant__ ForwardLaneTask task) {
  constexpr int kSlices = Tile::kSlices, kStates = Tile::kStates;
  auto& shared = shared_memory<typename Tile::Shared>();
  const ScanParams& p = task.scan;
  const Place& place = shared.place;
  const int thread = static_cast<int>(threadIdx.x), dstate = static_cast<int>(p.dstate);
  const int team_threads = task.channels / Tile::kWarpChannels * kWarpSize;
  const int slice = __shfl_sync(kWholeWarp, thread / team_threads, 0);  // the same for a warp, as the compiler now sees
  const Team team(thread - slice * team_threads, team_threads);
  auto& coefficients = shared.coefficients[slice];
  if (thread == 0) shared.place = Place(p, task.blocks, blockIdx.x);
  __syncthreads();
  if (thread < kLaneFields) shared.sources.set(thread, p, place);
  if (team.thread == 0) coefficients.set_sources(p, place);
  __syncthreads();

  const int barrier = slice + 1;
  const LaneActivations<Tile> activations(p, shared, shared.rows() + slice * (team_threads / kWarpSize), task.channels,
                                          team, barrier);
  int first = slice * Tile::kSteps;
  auto fetch_coefficients = [&](int buffer, int first_state, int first_step) {
    coefficients.fetch(buffer, first_state, dstate - first_state, first_step, place.steps - first_step, team);
  };
  if (first < place.steps) {
    fetch_coefficients(0, 0, first);
    activations.fetch(first, place.steps);
  }
  const LaneStates states = shared.states(task);
  begin_states<Tile>(p, place, states);
  if (first < place.steps) coefficients.arrive(0, team);
  __syncthreads();
  LaneSteps<Tile> lane(p, place, states, team.thread / kWarpSize * Tile::kWarpChannels + thread % Tile::kWarpChannels,
                       slice);

  int buffer = 0;
  for (; first < place.steps; first += kSlices * Tile::kSteps) {
    const int next = first + kSlices * Tile::kSteps;
    activations.take(first, lane.step, lane.input, lane.y);
    activations.release();
    activations.fetch(next, first);
    lane.begin_tile(first / Tile::kSteps);
    float* checkpoint = lane.checkpoint(place, first);
    for (int n = 0; n < dstate; n += kStates, buffer ^= 1) {
      const bool is_last = n + kStates >= dstate;
      if (!is_last || next < place.steps) {
        fetch_coefficients(buffer ^ 1, is_last ? 0 : n + kStates, is_last ? next : first);
      }
      lane.sweep(coefficients.tile[buffer], n, dstate - n < kStates ? dstate - n : kStates, checkpoint);
      coefficients.arrive(buffer ^ 1, team);
      synchronize(barrier, team.threads);  // what was fetched is there, and nobody reads this stage's B and C any more
    }
    activations.finish(first, lane.y);
  }
  const int last_tile = (place.steps + Tile::kSteps - 1) / Tile::kSteps - 1;
  if (slice == (last_tile + kSlices) % kSlices) lane.save_last(place);
}

template <class T>
Error forward_lanes(const ScanParams& params, int shape, int groups, CUstream_st* stream) {
  return with_shape(ForwardLaneShapes(), shape, [&](auto chosen) {
    using Tile = ForwardLaneTile<T, decltype(chosen)>;
    const int channels = groups * Tile::kWarpChannels;
    const ForwardLaneTask task{params, blocks_of_channels(params, channels), channels};
    return launch(forward_lanes_kernel<Tile>, params.sequences * task.blocks.count, groups * Tile::kSlices * kWarpSize,
                  Tile::bytes(params.dstate, groups), stream, task);
  });
}

}  // namespace mamba::kernels::cuda
