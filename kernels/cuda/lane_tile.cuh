// The shared memory of a block whose lanes share out time, as the adjoint carries of chunks need it.
#pragma once

#include "cuda/activation_tile.cuh"
#include "cuda/coefficients.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/launch.h"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class T_, class Shape>
struct LaneTile : Shape {
  using T = T_;
  using Shape::kLanes, Shape::kLaneSteps, Shape::kMostWarps, Shape::kStates;
  static constexpr int kWarpChannels = kWarpSize / kLanes, kMostChannels = kMostWarps * kWarpChannels;
  static constexpr int kSteps = kLanes * kLaneSteps;
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Activations = ActivationTile<T, kMostChannels, kSteps>;
  using Source = TileSource<T, kSteps>;

  struct Shared {
    CoefficientStage<Coefficients> coefficients;
    Place place;
    Activations u, delta, gate;  // gate: z, and out when z has been read
    Source u_source, delta_source, z_source, out_source;

    /// Behind the rest, by state and channel: rates, then the states between two tiles, twice.
    __device__ float* tail() { return reinterpret_cast<float*>(this + 1); }
  };
  static size_t shared_bytes(int64_t dstate, int channels) {
    return sizeof(Shared) + static_cast<size_t>(3 * dstate * channels) * sizeof(float);
  }
};

}  // namespace mamba::kernels::cuda
