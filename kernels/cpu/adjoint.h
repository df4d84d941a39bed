// The recurrence of the backward over one tile: forwards from a checkpoint, then the adjoint backwards. A gradient's
// terms are grouped by what they have in common, so that little is left to do for each state:
//
//   du = D dy + delta' sum_n g B        ddelta' = sum_n w A + u sum_n g B        with w = g exp(delta' A) h_{t-1}
#pragma once

#include "cpu/tile.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Step by step, one channel a lane.
template <class V, int kSteps>
struct AdjointTile {
  V u[kSteps], step[kSteps], input[kSteps], dy[kSteps];  // input is delta' u
  V y[kSteps], gB[kSteps], wA[kSteps];                   // sums over the states
  V slope[kSteps], dgate[kSteps];                        // d delta' / d delta, dout silu'(z)
  StepBounds<V> bounds;
};

/// State by state, one channel a lane.
template <class V, int kStates>
struct StateLanes {
  V A[kStates], A_log2e[kStates], adjoint[kStates], dA[kStates];
};

/// What the adjoint needs of the way there, and the gradients of B and C, which are sums over channels.
template <class V, int kStates, int kSteps>
struct StateTile {
  V a[kStates][kSteps], decayed[kStates][kSteps];  // exp(delta' A), and times the state before
  V dB[kStates][kSteps], dC[kStates][kSteps];

  /// Lanes from `first` on.
  void clear_sums(int64_t first = 0) {
    Integers<V> is_kept;
    for (int i = 0; i < kLanes<Element<V>>; ++i) is_kept[i] = i < first ? -1 : 0;
    for (auto* sums : {&dB, &dC}) {
      for (auto& row : *sums) {
        for (V& x : row) x = bits<V>(bits<Integers<V>>(x) & is_kept);
      }
    }
  }
};

/// Forwards: `decayed` is formed directly, as h_t - delta' B u it would cancel.
template <bool kGuarded, bool kSums, class V, class Entry, int kStates, int kSteps>
void recompute(const Walk& walk, const V (&A_log2e)[kStates], const Entry (&B)[kStates][kSteps],
               const Entry (&C)[kStates][kSteps], const V (&before)[kStates], AdjointTile<V, kSteps>& tile,
               StateTile<V, kStates, kSteps>& states) {
  V h[kStates];
  for (int n = 0; n < kStates; ++n) h[n] = before[n];
  for (int64_t i = 0, t = walk.first; i < walk.count; ++i, t += walk.direction) {
    V y = tile.y[t];
    for (int n = 0; n < kStates; ++n) {
      const V a = decay<kGuarded>(tile.step[t], A_log2e[n]), decayed = a * h[n];
      h[n] = decayed + tile.input[t] * B[n][t];
      y += C[n][t] * h[n];
      if constexpr (kSums) states.dC[n][t] += tile.dy[t] * h[n];
      states.a[n][t] = a;
      states.decayed[n][t] = decayed;
    }
    tile.y[t] = y;
  }
}

/// Backwards: `adjoint` is that of the state after the tile, then of the one before.
template <bool kSums, class V, class Entry, int kStates, int kSteps>
void retrace(const Walk& walk, const V (&A)[kStates], const Entry (&B)[kStates][kSteps],
             const Entry (&C)[kStates][kSteps], V (&adjoint)[kStates], V (&dA)[kStates], AdjointTile<V, kSteps>& tile,
             StateTile<V, kStates, kSteps>& states) {
  V g[kStates], sum_A[kStates];
  for (int n = 0; n < kStates; ++n) g[n] = adjoint[n], sum_A[n] = dA[n];
  for (int64_t i = 0, t = walk.first; i < walk.count; ++i, t += walk.direction) {
    V gB = tile.gB[t], wA = tile.wA[t];
    for (int n = 0; n < kStates; ++n) {
      g[n] += tile.dy[t] * C[n][t];
      const V w = g[n] * states.decayed[n][t];
      gB += g[n] * B[n][t];
      wA += w * A[n];
      sum_A[n] += w * tile.step[t];
      if constexpr (kSums) states.dB[n][t] += g[n] * tile.input[t];
      g[n] *= states.a[n][t];
    }
    tile.gB[t] = gB;
    tile.wA[t] = wA;
  }
  for (int n = 0; n < kStates; ++n) adjoint[n] = g[n], dA[n] = sum_A[n];
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
