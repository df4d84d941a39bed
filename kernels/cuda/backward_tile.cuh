// What a block of the backward works on, and its shared memory.
#pragma once

#include "cuda/backward_sums.cuh"
#include "cuda/coefficients.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/pair_access.cuh"

namespace mamba::kernels::cuda {

/// A condition that is the same in all lanes of a warp, and which the compiler then knows to be: where branches depend
/// on others, shuffles and warp barriers are preceded by a test, which ends the code that can be put in the best order.
__device__ __forceinline__ bool warp_agrees(bool condition) {
  return __any_sync(kWholeWarp, condition);
}

template <class T_, class Shape, PairAccess access>
struct BackwardTile : Shape {
  using T = T_;
  using Shape::kLanes, Shape::kStates, Shape::kWarps;
  static constexpr PairAccess kAccess = access;
  static constexpr int kLaneSteps = 8, kPair = 2;
  static constexpr int kThreads = kWarps * kWarpSize, kWarpChannels = kPair * kWarpSize / kLanes;
  static constexpr int kChannels = kWarps * kWarpChannels, kSteps = kLanes * kLaneSteps;
  static_assert(kChannels == Shape::kBlockChannels && kSteps % kCheckpointSpacing == 0);
  static_assert(kStates % 4 == 0);  // where states are contiguous, quads of B and C begin at multiples of four
  /// Whether activations are loaded when a tile begins, prefetched one tile earlier, or while the tile before ends.
  static constexpr bool kLoadsLate = kLanes == 4;
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Sums = LaneSums<kLanes>;
  using Plane = PairPlane<T, access>;

  /// In all rows of shared.tail(): one row for each state.
  struct StateRow {
    float rate[kChannels];
    float adjoint[kChannels];  // before the steps that were taken last
    float dA[kChannels];
  };

  /// Each thread's share of dA of its pair, for the states of a stage, or for all where there are few.
  using Shares = float2[kThreads];
  static constexpr __host__ __device__ bool keeps_shares(int64_t dstate) { return dstate <= kFewStates; }

  struct Shared {
    CoefficientStage<Coefficients> coefficients;
    Place place;
    Plane u, delta, z, dout, du, ddelta, dz;
    // Of the block's channels; then for each thread its sums of dD and ddelta_bias over the tiles so far.
    float bias[kChannels], skip[kChannels];
    GrowthRate growth[kChannels];
    alignas(16) float4 channel_sums[kThreads];
    CoefficientSums dB, dC;
    alignas(16) float entry[2][kStates][kChannels];  // states at the beginning of the tile
    typename Sums::Shared lane_sums[kWarps];
    // By state of the stage, counted from 1: slot 0 takes what the delay of LaneSums leaves over.
    alignas(16) typename Sums::Sums warp_sums[kWarps][kStates + 1];
    // What a thread needs again at the end of a tile: by channel and quad of steps.
    float4 u_kept[kPair][2][kThreads], slope_kept[kPair][2][kThreads], gate_kept[kPair][2][kThreads];

    /// Behind the rest: a row for each state, and a spare one, which is read ahead; then the shares of dA.
    __device__ StateRow* tail() { return reinterpret_cast<StateRow*>(this + 1); }
    __device__ Shares* dA_shares(int64_t dstate) { return reinterpret_cast<Shares*>(tail() + dstate + 1); }

    /// By one warp, before a barrier.
    __device__ void set_planes(const ScanGradParams& grad) {
      const int i = static_cast<int>(threadIdx.x);
      if (i == 0) u = Plane(grad.scan.u, place);
      if (i == 1) delta = Plane(grad.scan.delta, place);
      if (i == 2) z = Plane(grad.scan.z, place);
      if (i == 3) dout = Plane(grad.dout, place);
      if (i == 4) du = Plane(grad.du, place);
      if (i == 5) ddelta = Plane(grad.ddelta, place);
      if (i == 6) dz = Plane(grad.dz, place);
    }
  };
  static constexpr size_t shared_bytes(int64_t dstate) {
    return sizeof(Shared) + static_cast<size_t>(dstate + 1) * sizeof(StateRow) +
           static_cast<size_t>(keeps_shares(dstate) ? kFewStates : kStates) * sizeof(Shares);
  }
};

}  // namespace mamba::kernels::cuda
