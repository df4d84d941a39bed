// The forward for few channels: the lanes of a warp share out time.
//
// kLanes lanes hold kLaneSteps consecutive steps each of one channel; a warp has 32 / kLanes channels, neighbouring
// lanes, so that they read the same B and C. State after state, each lane runs its steps from 0, a scan over the lanes
// gives every lane the state it begins with, and the steps run again from there. Several warps may have the same
// channels and share out the states; what each adds to y meets in shared memory. The states at the end of a tile wait
// there for the next tile.
#pragma once

#include "cuda/coefficients.cuh"
#include "cuda/lane_rows.cuh"
#include "cuda/lane_steps.cuh"
#include "cuda/launch.h"

namespace mamba::kernels::cuda {

template <class T_, class Shape>
struct ForwardLaneTile : Shape {
  using T = T_;
  using Shape::kLanes, Shape::kLaneSteps, Shape::kStates, Shape::kParts, Shape::kWarpChannels;
  static constexpr int kSteps = kLanes * kLaneSteps, kShift = kLaneSteps / kWarpChannels;
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Row = LaneRow<T, kSteps, kShift>;
  using Sums = LaneSums<kSteps, kShift>;

  struct Shared {
    CoefficientStage<Coefficients> coefficients;
    Place place;
    LaneSources<T, kSteps> sources;

    /// Behind the rest: a row for each channel, sums for each part and channel, then, by state and channel, rates and
    /// the states between two tiles, twice.
    __device__ Row* rows() { return reinterpret_cast<Row*>(this + 1); }
    __device__ Sums* sums(const ForwardLaneTask& task) { return reinterpret_cast<Sums*>(rows() + task.channels); }
    __device__ float* states(const ForwardLaneTask& task) {
      return reinterpret_cast<float*>(sums(task) + kParts * task.channels);
    }
  };
  static_assert(sizeof(Row) + kParts * sizeof(Sums) <= Shape::kRowBytes && sizeof(Shared) <= Shape::shared_bytes(0, 0));
  static size_t bytes(int64_t dstate, int channels) {
    return sizeof(Shared) + static_cast<size_t>(channels) * (sizeof(Row) + kParts * sizeof(Sums)) +
           static_cast<size_t>(3 * dstate * channels) * sizeof(float);
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kMostWarps* kWarpSize, Tile::kBlocksPerProcessor)
    forward_lanes_kernel(const __grid_constant__ ForwardLaneTask task) {
  auto& shared = shared_memory<typename Tile::Shared>();
  const ScanParams& p = task.scan;
  const Place& place = shared.place;
  const int threads = static_cast<int>(blockDim.x), dstate = static_cast<int>(p.dstate);
  if (threadIdx.x == 0) {
    shared.place = Place(p, task.blocks, blockIdx.x);
    shared.coefficients.set_sources(p, place);
    shared.sources = LaneSources<typename Tile::T, Tile::kSteps>(p, place);
  }
  __syncthreads();
  const LaneRows<Tile> rows(task, shared);
  auto fetch_coefficients = [&](int buffer, int first_state, int first) {
    shared.coefficients.fetch(buffer, first_state, dstate - first_state, first, place.steps - first, threads);
  };
  fetch_coefficients(0, 0, 0);
  LaneSteps<Tile> lane(task, place, shared);
  __syncthreads();  // the rows know their channels
  rows.fetch_inputs(0, 0);
  shared.coefficients.arrive(0, threads);
  __syncthreads();

  int buffer = 0, parity = 0;
  for (int first = 0; first < place.steps; first += Tile::kSteps, parity ^= 1) {
    const int next = first + Tile::kSteps;
    rows.prepare(first, parity);
    __syncthreads();  // delta' and delta' u are there; delta, z and y of the tile before are not needed any more
    lane.begin_tile();
    if (next < place.steps) rows.fetch_inputs(next, parity ^ 1);
    if (p.z.data) rows.fetch_gate(first);
    float* checkpoint = lane.checkpoint(place, first);
    for (int n = 0; n < dstate; n += Tile::kStates, buffer ^= 1) {
      const bool is_last = n + Tile::kStates >= dstate;
      if (!is_last) {
        fetch_coefficients(buffer ^ 1, n + Tile::kStates, first);
      } else if (next < place.steps) {
        fetch_coefficients(buffer ^ 1, 0, next);
      }
      lane.sweep(shared.coefficients.tile[buffer], n, dstate - n < Tile::kStates ? dstate - n : Tile::kStates, parity,
                 checkpoint);
      if (is_last) lane.end_tile();
      shared.coefficients.arrive(buffer ^ 1, threads);
      __syncthreads();  // what was fetched is there, and nobody reads this stage's B and C any more
    }
    rows.finish(first, parity);
  }
  lane.save_last(place, parity);
}

template <class T>
Error forward_lanes(const ScanParams& params, const ForwardLaneChoice& choice, CUstream_st* stream) {
  return with_shape(ForwardLaneShapes(), choice.shape, [&](auto chosen) {
    using Tile = ForwardLaneTile<T, decltype(chosen)>;
    const int channels = choice.groups * Tile::kWarpChannels;
    const ForwardLaneTask task{params, blocks_of_channels(params, channels), channels};
    return launch(forward_lanes_kernel<Tile>, params.sequences * task.blocks.count,
                  choice.groups * Tile::kParts * kWarpSize, Tile::bytes(params.dstate, channels), stream, task);
  });
}

}  // namespace mamba::kernels::cuda
