// The forward: lanes over channels, a few states at a time in registers, over tiles of time that stay in the cache.
#pragma once

#include "cpu/coefficients.h"
#include "cpu/tile.h"
#include "mamba/kernels/config.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// The recurrence, for kStates states of as many channels as there are lanes.
template <bool kGuarded, int kStates, int kSteps, class V, class Entry>
void advance(const Walk& walk, const V* step, const V* input, const V (&A)[kStates], const Entry (&B)[kStates][kSteps],
             const Entry (&C)[kStates][kSteps], V (&state)[kStates], V* y) {
  V h[kStates];
  for (int n = 0; n < kStates; ++n) h[n] = state[n];
  for (int64_t i = 0, t = walk.first; i < walk.count; ++i, t += walk.direction) {
    V sum = y[t];
    for (int n = 0; n < kStates; ++n) {
      h[n] = decay<kGuarded>(step[t], A[n]) * h[n] + input[t] * B[n][t];
      sum += C[n][t] * h[n];
    }
    y[t] = sum;
  }
  for (int n = 0; n < kStates; ++n) state[n] = h[n];
}

/// As many channels as there are lanes, over one tile of time. last_state holds the state between tiles.
template <class T>
class ForwardTile {
  using Real = Wide<T>;
  using V = Vec<Real>;

 public:
  static constexpr int64_t kSteps = 4 * kCheckpointSpacing;

  ForwardTile(const ScanParams& params, const ScanPiece& piece_, Range channels, Range scanned_)
      : p(params),
        piece(piece_),
        lanes{piece_, params.dim, channels},
        scanned(scanned_),
        time(piece_.time(scanned_, params.reverse)) {}

  void run() {
    load_inputs();
    if (is_shared(p.B, p.dim, lanes.channels) && is_shared(p.C, p.dim, lanes.channels)) {
      scan_states<Real>();
    } else {
      scan_states<V>();
    }
    store_out();
  }

 private:
  const ScanParams& p;
  const ScanPiece& piece;
  const Lanes<T> lanes;
  const Range scanned, time;
  V u[kSteps], step[kSteps], input[kSteps], y[kSteps];
  StepBounds<V> bounds;

  void load_inputs() {
    lanes.load(p.u, time, u);
    lanes.load(p.delta, time, step);
    const V bias = lanes.parameter(p.delta_bias), skip = lanes.parameter(p.D);
    for (int64_t t = 0; t < time.end - time.begin; ++t) {
      const V raw = step[t] + bias;
      step[t] = p.delta_softplus ? Softplus<V>(raw).value : raw;
      bounds.add(step[t]);
      input[t] = step[t] * u[t];
      y[t] = p.D ? skip * u[t] : V{};
    }
  }

  template <class Entry>
  void scan_states() {
    int64_t n = 0;
    for (; n + kStatesAtOnce <= p.dstate; n += kStatesAtOnce) scan_states<Entry, kStatesAtOnce>(n);
    for (; n < p.dstate; ++n) scan_states<Entry, 1>(n);
  }

  /// States n, n + 1, ... n + kStates - 1.
  template <class Entry, int kStates>
  void scan_states(int64_t n) {
    alignas(kVectorBytes) Entry B[kStates][kSteps], C[kStates][kSteps];
    load_coefficient_of<T>(p.B, p.dim, piece.batch, lanes.channels, n, kStates, time, B);
    load_coefficient_of<T>(p.C, p.dim, piece.batch, lanes.channels, n, kStates, time, C);

    V A[kStates], h[kStates];
    load_columns(lanes.states(static_cast<const Real*>(p.A), 0, p.dstate), n, 1, kStates, A);
    load_columns(running_states(), n, 1, kStates, h);
    bool safe = true;
    for (V& x : A) {
      x = scaled_by_log2e(x);
      safe = safe && bounds.are_safe_for(x);
    }

    const int64_t steps = scanned.end - scanned.begin;
    for (const Range some : Tiles{{0, steps}, kCheckpointSpacing}) {
      if (p.checkpoints) save((scanned.begin + some.begin) / kCheckpointSpacing, n, h);
      const Walk walk(some, steps, p.reverse);
      safe ? advance<false>(walk, step, input, A, B, C, h, y) : advance<true>(walk, step, input, A, B, C, h, y);
    }
    store_columns(running_states(), n, 1, kStates, h);
  }

  Rows<Real> running_states() const { return lanes.states(static_cast<Real*>(p.last_state), piece.sequence, p.dstate); }

  /// Checkpoints are laid out (batch, slots, dstate, dim).
  template <int kStates>
  void save(int64_t tile, int64_t n, const V (&h)[kStates]) const {
    const int64_t slot = piece.batch * p.checkpoint_slots + piece.slot + tile;
    Real* first = static_cast<Real*>(p.checkpoints) + (slot * p.dstate + n) * p.dim + lanes.channels.begin;
    for (int j = 0; j < kStates; ++j) Rows<Real>(first + j * p.dim, 1, lanes.count()).set_column(0, h[j]);
  }

  void store_out() {
    if (p.z.data) {
      V* z = input;
      lanes.load(p.z, time, z);
      for (int64_t t = 0; t < time.end - time.begin; ++t) y[t] *= z[t] * sigmoid(z[t]);
    }
    lanes.store(p.out, time, y);
  }
};

template <class T>
void enter(const ScanParams& p, const ScanPiece& piece) {
  using Real = Wide<T>;
  Real* state = static_cast<Real*>(p.last_state);
  const Real* initial = static_cast<const Real*>(p.initial_state);
  const int64_t first = (piece.sequence * p.dim + piece.channels.begin) * p.dstate;
  const int64_t count = (piece.channels.end - piece.channels.begin) * p.dstate;
  for (int64_t i = first; i < first + count; ++i) state[i] = initial ? initial[i] : Real(0);
}

/// Tile by tile, not channel by channel: neighbouring channels may share lines of memory.
template <class T>
void forward(const ScanParams& p, const ScanPiece& piece) {
  enter<T>(p, piece);
  for (const Range scanned : Tiles{piece.scanned, ForwardTile<T>::kSteps}) {
    const Range time = piece.time(scanned, p.reverse);
    for (const Activation* x : {&p.u, &p.delta, &p.z, &p.out}) prefetch<T>(*x, piece, piece.channels, time);
    for (const Range channels : Tiles{piece.channels, kLanes<Wide<T>>}) {
      ForwardTile<T>(p, piece, channels, scanned).run();
    }
  }
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
