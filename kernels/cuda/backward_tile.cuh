// What a block of the backward works on, and its shared memory.
#pragma once

#include "cuda/backward_sums.cuh"
#include "cuda/coefficients.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/pair_access.cuh"

namespace mamba::kernels::cuda {

template <class T_, class Shape>
struct BackwardTile : Shape {
  using T = T_;
  using Shape::kLanes, Shape::kStates, Shape::kWarps;
  static constexpr int kLaneSteps = 8, kPair = 2;
  static constexpr int kThreads = kWarps * kWarpSize, kWarpChannels = kPair * kWarpSize / kLanes;
  static constexpr int kChannels = kWarps * kWarpChannels, kSteps = kLanes * kLaneSteps;
  static_assert(kChannels == Shape::kBlockChannels && kSteps % kCheckpointSpacing == 0);
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Sums = LaneSums<kLanes>;

  struct Shared {
    CoefficientStage<Coefficients> coefficients;
    Place place;
    Plane<T> u, delta, z, dout, du, ddelta, dz;
    PairAccess access;  // of all these planes
    // Of the block's channels, and for each thread its sums over the tiles so far.
    float bias[kChannels], skip[kChannels];
    GrowthRate growth[kChannels];
    float dD[kPair][kThreads], ddelta_bias[kPair][kThreads];
    CoefficientSums dB, dC;
    alignas(16) float entry[2][kStates][kChannels];  // states at the beginning of the tile
    typename Sums::Shared lane_sums[kWarps];
    // By state of the stage, counted from 1: slot 0 takes what the delay of LaneSums leaves over.
    alignas(16) typename Sums::Sums warp_sums[kWarps][kStates + 1];
    // What a thread needs again at the end of a tile: by channel and quad of steps.
    float4 u_kept[kPair][2][kThreads], slope_kept[kPair][2][kThreads], gate_kept[kPair][2][kThreads];

    /// Behind the rest, by state and channel: rates; a spare row and dA; the adjoint between two tiles, twice.
    __device__ float* tail() { return reinterpret_cast<float*>(this + 1); }

    /// By one thread, before a barrier.
    __device__ void set_place(const ScanGradParams& grad, const Place& new_place) {
      place = new_place;
      Plane<T>* const planes[] = {&u, &delta, &z, &dout, &du, &ddelta, &dz};
      const Activation* const activations[] = {&grad.scan.u, &grad.scan.delta, &grad.scan.z, &grad.dout,
                                               &grad.du,     &grad.ddelta,     &grad.dz};
      for (int i = 0; i < 7; ++i) {
        *planes[i] = Plane<T>(*activations[i], place);
        if (!activations[i]->data) continue;
        const PairAccess its_own = pair_access(*planes[i], place);
        access = i == 0 || its_own == access ? its_own : PairAccess::kElements;
      }
    }
  };
  static size_t shared_bytes(int64_t dstate) {
    return sizeof(Shared) + static_cast<size_t>((4 * dstate + 1) * kChannels) * sizeof(float);
  }
};

}  // namespace mamba::kernels::cuda
