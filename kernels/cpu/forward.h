// The forward: lanes over channels, a few states at a time in registers, over tiles of time that stay in the cache.
#pragma once

#include "cpu/carry.h"
#include "cpu/coefficients.h"
#include "cpu/tile.h"
#include "mamba/kernels/config_cpu.h"

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

/// As many channels as there are lanes, over one tile of time. `state`, of shape (dim, dstate), is kept between tiles.
template <class T>
class ForwardTile {
  using Real = Wide<T>;
  using V = Vec<Real>;

 public:
  static constexpr int64_t kSteps = kForwardTile;

  ForwardTile(const ScanParams& params, const ScanPiece& piece_, Real* state_, Range channels, Range scanned_)
      : p(params),
        piece(piece_),
        state(state_),
        lanes{piece_, params.dim, channels},
        scanned(scanned_),
        time(piece_.time(scanned_, params.reverse)) {}

  void run() {
    load_inputs();
    scan_states();
    store_out();
  }

  /// Leaves out alone; adds the sizes of the steps to sums, of shape (dim).
  void run_for_state(Real* sums) {
    load_inputs();
    scan_states();
    lanes.add(sums, 0, bounds.sum);
  }

 private:
  const ScanParams& p;
  const ScanPiece& piece;
  Real* const state;
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

  void scan_states() {
    if (is_shared(p.B, p.dim, lanes.channels) && is_shared(p.C, p.dim, lanes.channels)) {
      scan_states<Real>();
    } else {
      scan_states<V>();
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

  Rows<Real> running_states() const { return lanes.states(state, 0, p.dstate); }

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
void enter(const ScanParams& p, const ScanPiece& piece, Wide<T>* state) {
  const int64_t row = piece.sequence * p.dim * p.dstate;
  const Wide<T>* initial = piece.chunk == 0 ? static_cast<const Wide<T>*>(p.initial_state) : nullptr;
  for (int64_t i = piece.channels.begin * p.dstate; i < piece.channels.end * p.dstate; ++i) {
    state[i] = initial ? initial[row + i] : Wide<T>(0);
  }
}

/// Calls f with every tile of a piece: tile by tile, not channel by channel, since neighbours may share lines of
/// memory.
template <class T, class F>
void for_each_tile(const ScanParams& p, const ScanPiece& piece, Wide<T>* state, F&& f) {
  for (const Range scanned : Tiles(piece.scanned, ForwardTile<T>::kSteps)) {
    const Range time = piece.time(scanned, p.reverse);
    for (const Activation* x : {&p.u, &p.delta, &p.z, &p.out}) prefetch<T>(*x, piece, piece.channels, time);
    for (const Range channels : Tiles(piece.channels, kLanes<Wide<T>>)) {
      ForwardTile<T> tile(p, piece, state, channels, scanned);
      f(tile);
    }
  }
}

template <class T>
void carry(const ScanParams& p, const ScanPiece& piece) {
  const Carries<Wide<T>> carries(p, piece.chunks);
  Wide<T>*const state = carries.end(piece.chunk), *const sums = carries.steps(piece.chunk);
  enter<T>(p, piece, state);
  for (int64_t d = piece.channels.begin; d < piece.channels.end; ++d) sums[d] = 0;
  for_each_tile<T>(p, piece, state, [&](ForwardTile<T>& tile) { tile.run_for_state(sums); });
}

template <class T>
void forward(const ScanParams& p, const ScanPiece& piece) {
  Wide<T>* state = static_cast<Wide<T>*>(p.last_state) + piece.sequence * p.dim * p.dstate;
  if (piece.chunk + 1 < piece.chunks) state = Carries<Wide<T>>(p, piece.chunks).running(piece.chunk);
  if (piece.chunk > 0) {
    chain<T>(p, piece, state);
  } else {
    enter<T>(p, piece, state);
  }
  for_each_tile<T>(p, piece, state, [](ForwardTile<T>& tile) { tile.run(); });
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
