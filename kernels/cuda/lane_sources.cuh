// The activations of a block whose lanes share out time: where they lie in global memory, and in shared memory.
#pragma once

#include "cuda/activation_tile.cuh"

namespace mamba::kernels::cuda {

/// Bytes after `bytes` of them such that the next row of shared memory begins `shift` bytes later, in banks.
constexpr int bank_padding(int bytes, int shift) {
  constexpr int kBanks = 128;
  return (shift - bytes % kBanks + kBanks) % kBanks;
}

/// The activations in the order in which they are fetched.
enum LaneField { kDelta, kInput, kGate, kOut, kLaneFields };

/// A tile of a warp's channels. Rows follow each other such that a quarter of a warp, some lanes of every channel,
/// meets no bank conflicts. What goes out takes the place of the gate.
template <class T, int kSteps, int kLaneSteps, int kChannels>
struct LaneRows {
  static constexpr int kSize = static_cast<int>(sizeof(T)), kSkewed = kSteps + kSteps / 8;
  static constexpr int kPitch = kSkewed + bank_padding(kSkewed * kSize, kLaneSteps / kChannels * kSize) / kSize;
  using Row = T[kPitch];

  alignas(16) Row at[kOut][kChannels];
  alignas(16) float bias[kChannels];
  alignas(16) float D[kChannels];
};

/// How a block's activations lie in global memory: vectors along time; channels side by side, so that the lanes of a
/// warp move neighbouring ones, of 16 bits in pairs; anything else.
enum class LaneAccess { kVectors, kAcross, kElements };

template <class T, int kSteps>
struct LaneSources {
  TileSource<T, kSteps> at[kLaneFields];
  LaneAccess access[kLaneFields];  // the best for each

  /// By one thread for each field, before a barrier.
  __device__ void set(int field, const ScanParams& p, const Place& place) {
    const Activation& x = field == kDelta ? p.delta : field == kInput ? p.u : field == kGate ? p.z : p.out;
    const auto source = activation_source<T, kSteps>(x, place);
    const bool pairs = place.channels % 2 == 0 && source.step_stride % 2 == 0 &&
                       reinterpret_cast<uintptr_t>(source.origin) % (2 * sizeof(T)) == 0;
    const bool across = source.row_stride == 1 && (sizeof(T) == 4 || pairs);
    at[field] = source;
    access[field] = source.is_simple() ? LaneAccess::kVectors : across ? LaneAccess::kAcross : LaneAccess::kElements;
  }
  /// The best for all of them.
  __device__ LaneAccess common_access(bool has_gate) const {
    LaneAccess common = access[kOut];
    for (int i = 0; i < kOut; ++i) {
      if (access[i] != common && (i != kGate || has_gate)) common = LaneAccess::kElements;
    }
    return common;
  }
};

}  // namespace mamba::kernels::cuda
