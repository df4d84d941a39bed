// States between two tiles, handed from warp to warp without barriers.
#pragma once

#include "cuda/intrinsics.cuh"

namespace mamba::kernels::cuda {

/// A state and the number of the tile that it follows, written and read as one word: who sees the number sees the
/// state.
struct LaneCarry {
  static constexpr int kNothing = -2, kInitial = -1;  // in place of a tile's number

  float state;
  int after;

  __device__ __forceinline__ void publish(float new_state, int tile) {
    store_word(this, bit_cast<uint64_t>(LaneCarry{new_state, tile}));
  }
  /// The newest. A state after a tile stays until the warp that waits for it publishes that after the next one, since
  /// only what follows from that can replace it.
  __device__ __forceinline__ LaneCarry seen() const { return bit_cast<LaneCarry>(load_word(this)); }
};
static_assert(sizeof(LaneCarry) == sizeof(uint64_t));

}  // namespace mamba::kernels::cuda
