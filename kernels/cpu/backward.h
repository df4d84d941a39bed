// The backward: windows of a few tiles, from last to first. A tile is recomputed from its checkpoint and retraced, for
// several vectors of channels, whose terms of the gradients of B and C are added up.
#pragma once

#include "cpu/adjoint.h"
#include "cpu/coefficient_sums.h"
#include "cpu/coefficients.h"
#include "mamba/kernels/config_cpu.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Up to kSweepChannels channels of one sequence.
template <class T>
class Backward {
  using Real = Wide<T>;
  using V = Vec<Real>;
  static constexpr int kSteps = kCheckpointSpacing, kTiles = 2, kMostVectors = kSweepChannels / kLanes<Real>;
  using Tile = AdjointTile<V, kSteps>;

 public:
  Backward(const ScanGradParams& params, const ScanPiece& piece_, const ChannelBlocks& blocks, Range channels_)
      : grad(params),
        p(params.scan),
        piece(piece_),
        channels(channels_),
        vectors(static_cast<int>(ceil_div(channels_.end - channels_.begin, kLanes<Real>))),
        dB(p, p.B, params.dB, blocks, piece_),
        dC(p, p.C, params.dC, blocks, piece_) {}

  void run() {
    enter();
    const bool shared = is_shared(p.B, p.dim, channels) && is_shared(p.C, p.dim, channels);
    const int64_t tiles_in_all = ceil_div(piece.steps, kSteps);
    for (first_tile = (ceil_div(tiles_in_all, kTiles) - 1) * kTiles; first_tile >= 0; first_tile -= kTiles) {
      tiles = static_cast<int>(tiles_in_all - first_tile < kTiles ? tiles_in_all - first_tile : kTiles);
      load_inputs();
      if (shared) {
        sweep_states<Real>();
      } else {
        sweep_states<V>();
      }
      store_gradients();
    }
  }

 private:
  const ScanGradParams& grad;
  const ScanParams& p;
  const ScanPiece& piece;
  const Range channels;
  const int vectors;
  const CoefficientSums<Real> dB, dC;
  int64_t first_tile = 0;  // of the window at hand
  int tiles = 0;
  Tile window[kTiles][kMostVectors];

  Lanes<T> lanes(int k) const {
    const int64_t first = channels.begin + k * kLanes<Real>, end = first + kLanes<Real>;
    return {piece, p.dim, {first, end < channels.end ? end : channels.end}};
  }
  /// Tiles [begin, end) of the window, in steps and in points of time.
  Range scanned(int begin, int end) const {
    const int64_t last = (first_tile + end) * kSteps;
    return {(first_tile + begin) * kSteps, last < piece.steps ? last : piece.steps};
  }
  Range time(int tile) const { return piece.time(scanned(tile, tile + 1), p.reverse); }
  Range time() const { return piece.time(scanned(0, tiles), p.reverse); }

  template <class F>
  MAMBA_INLINE void for_each_tile(F&& f) {
    for (int tile = 0; tile < tiles; ++tile) {
      for (int k = 0; k < vectors; ++k) f(lanes(k), time(tile), window[tile][k]);
    }
  }

  /// dinitial_state serves as the adjoint of the running state.
  void enter() {
    Real* adjoint = static_cast<Real*>(grad.dinitial_state);
    const Real* last = static_cast<const Real*>(grad.dlast_state);
    const int64_t row = piece.sequence * p.dim;
    for (int64_t i = (row + channels.begin) * p.dstate; i < (row + channels.end) * p.dstate; ++i) {
      adjoint[i] = last ? last[i] : Real(0);
    }
  }

  void load_inputs() {
    load(p.u, &Tile::u);
    load(p.delta, &Tile::step);
    load(grad.dout, &Tile::dy);
    load(p.z, &Tile::dgate);
    for_each_tile([&](const Lanes<T>& at, Range time, Tile& x) { prepare(at, time.end - time.begin, x); });
  }
  void load(const Activation& from, V (Tile::*to)[kSteps]) {
    if (!from.data) return;
    prefetch<T>(from, piece, channels, time());
    for_each_tile([&](const Lanes<T>& at, Range time, Tile& x) { at.load(from, time, x.*to); });
  }

  void prepare(const Lanes<T>& at, int64_t steps, Tile& x) const {
    const V bias = at.parameter(p.delta_bias), skip = at.parameter(p.D);
    x.bounds = {};
    for (int64_t t = 0; t < steps; ++t) {
      const V raw = x.step[t] + bias;
      const Softplus<V> bent(raw);
      x.step[t] = p.delta_softplus ? bent.value : raw;
      x.slope[t] = p.delta_softplus ? bent.slope : broadcast<V>(Real(1));
      x.bounds.add(x.step[t]);
      x.input[t] = x.step[t] * x.u[t];
      if (!grad.dout.data) x.dy[t] = V{};
      if (p.z.data) {
        const V z = x.dgate[t], s = sigmoid(z);
        x.dgate[t] = x.dy[t] * (s * (Real(1) + z * (Real(1) - s)));
        x.dy[t] *= z * s;
      }
      x.y[t] = p.D ? skip * x.u[t] : V{};
      x.gB[t] = x.wA[t] = V{};
    }
  }

  template <class Entry>
  void sweep_states() {
    const bool with_sums = dB.are_wanted() || dC.are_wanted();
    int64_t n = 0;
    for (; n + kStatesAtOnce <= p.dstate; n += kStatesAtOnce) {
      with_sums ? sweep<true, Entry, kStatesAtOnce>(n) : sweep<false, Entry, kStatesAtOnce>(n);
    }
    for (; n < p.dstate; ++n) with_sums ? sweep<true, Entry, 1>(n) : sweep<false, Entry, 1>(n);
  }

  /// States n, n + 1, ... n + kStates - 1 of all channels over the window.
  template <bool kSums, class Entry, int kStates>
  void sweep(int64_t n) {
    constexpr bool kShared = std::is_same_v<Entry, Real>;
    if (kShared && kSums) {
      dB.prefetch(channels.begin, n, kStates, time());
      dC.prefetch(channels.begin, n, kStates, time());
    }
    StateLanes<V, kStates> states[kMostVectors];
    for (int k = 0; k < vectors; ++k) load_states(lanes(k), n, states[k]);

    alignas(kVectorBytes) Entry B[kStates][kSteps], C[kStates][kSteps];
    StateTile<V, kStates, kSteps> terms;
    for (int tile = tiles - 1; tile >= 0; --tile) {
      if (kShared) load_coefficients(channels, n, time(tile), B, C);
      terms.clear_sums();
      // The last vector first: it may repeat a channel, whose repeated terms are cleared before any are added.
      for (int k = vectors - 1; k >= 0; --k) {
        const Lanes<T> at = lanes(k);
        if (!kShared) load_coefficients(at.channels, n, time(tile), B, C);
        sweep_tile<kSums>(at, n, tile, B, C, states[k], window[tile][k], terms);
        if constexpr (kSums && kShared) {
          if (at.count() < kLanes<Real>) terms.clear_sums(at.count());
        } else if constexpr (kSums) {
          dB.add_separate(at.channels, n, time(tile), terms.dB);
          dC.add_separate(at.channels, n, time(tile), terms.dC);
          terms.clear_sums();
        }
      }
      if constexpr (kSums && kShared) {
        dB.add_shared(channels.begin, n, time(tile), terms.dB);
        dC.add_shared(channels.begin, n, time(tile), terms.dC);
      }
    }
    for (int k = 0; k < vectors; ++k) store_states(lanes(k), n, states[k]);
  }

  template <class Entry, int kStates>
  void load_coefficients(Range of, int64_t n, Range time, Entry (&B)[kStates][kSteps],
                         Entry (&C)[kStates][kSteps]) const {
    load_coefficient_of<T>(p.B, p.dim, piece.batch, of, n, kStates, time, B);
    load_coefficient_of<T>(p.C, p.dim, piece.batch, of, n, kStates, time, C);
  }

  template <int kStates>
  void load_states(const Lanes<T>& at, int64_t n, StateLanes<V, kStates>& x) const {
    load_columns(at.states(static_cast<const Real*>(p.A), 0, p.dstate), n, 1, kStates, x.A);
    load_columns(adjoints(at), n, 1, kStates, x.adjoint);
    for (int j = 0; j < kStates; ++j) {
      x.A_log2e[j] = scaled_by_log2e(x.A[j]);
      x.dA[j] = V{};
    }
  }
  template <int kStates>
  void store_states(const Lanes<T>& at, int64_t n, StateLanes<V, kStates>& x) const {
    store_columns(adjoints(at), n, 1, kStates, x.adjoint);
    if (!grad.dA) return;
    const Rows<Real> sums = at.states(static_cast<Real*>(grad.dA), piece.sequence, p.dstate);
    V before[kStates];
    load_columns(sums, n, 1, kStates, before);
    for (int j = 0; j < kStates; ++j) x.dA[j] += before[j];
    store_columns(sums, n, 1, kStates, x.dA);
  }
  Rows<Real> adjoints(const Lanes<T>& at) const {
    return at.states(static_cast<Real*>(grad.dinitial_state), piece.sequence, p.dstate);
  }

  template <bool kSums, class Entry, int kStates>
  void sweep_tile(const Lanes<T>& at, int64_t n, int tile, const Entry (&B)[kStates][kSteps],
                  const Entry (&C)[kStates][kSteps], StateLanes<V, kStates>& x, Tile& y,
                  StateTile<V, kStates, kSteps>& terms) const {
    V h[kStates];
    bool safe = true;
    for (int j = 0; j < kStates; ++j) {
      const Real* saved = checkpoint(first_tile + tile, n + j);
      h[j] = at.parameter(saved);
      if (first_tile >= kTiles) prefetch_line(saved - kTiles * p.dstate * p.dim + at.channels.begin, at.count());
      safe = safe && y.bounds.are_safe_for(x.A_log2e[j]);
    }
    const int64_t steps = time(tile).end - time(tile).begin;
    const Walk forwards({0, steps}, steps, p.reverse), backwards({0, steps}, steps, !p.reverse);
    safe ? recompute<false, kSums>(forwards, x.A_log2e, B, C, h, y, terms)
         : recompute<true, kSums>(forwards, x.A_log2e, B, C, h, y, terms);
    retrace<kSums>(backwards, x.A, B, C, x.adjoint, x.dA, y, terms);
  }

  /// Of (batch, slots, dstate, dim).
  const Real* checkpoint(int64_t tile, int64_t n) const {
    const int64_t slot = piece.batch * p.checkpoint_slots + piece.slot + tile;
    return static_cast<const Real*>(p.checkpoints) + (slot * p.dstate + n) * p.dim;
  }

  void store_gradients() {
    for_each_tile([&](const Lanes<T>& at, Range time, Tile& x) { finish(at, time.end - time.begin, x); });
    store(&Tile::dy, grad.du);
    store(&Tile::wA, grad.ddelta);
    store(&Tile::dgate, grad.dz);
  }
  void store(V (Tile::*from)[kSteps], const Activation& to) {
    if (!to.data) return;
    prefetch<T>(to, piece, channels, time());
    for_each_tile([&](const Lanes<T>& at, Range time, Tile& x) { at.store(to, time, x.*from); });
  }

  /// Leaves the gradients of u, delta and z in dy, wA and dgate.
  void finish(const Lanes<T>& at, int64_t steps, Tile& x) const {
    const V skip = at.parameter(p.D);
    V dD{}, dbias{};
    for (int64_t t = 0; t < steps; ++t) {
      dD += x.dy[t] * x.u[t];
      x.dy[t] = (p.D ? skip * x.dy[t] : V{}) + x.step[t] * x.gB[t];
      x.wA[t] = (x.wA[t] + x.u[t] * x.gB[t]) * x.slope[t];
      dbias += x.wA[t];
      x.dgate[t] *= x.y[t];
    }
    at.add(grad.dD, piece.sequence, dD);
    at.add(grad.ddelta_bias, piece.sequence, dbias);
  }
};

template <class T>
void backward(const ScanGradParams& grad, const ScanPiece& piece, const ChannelBlocks& blocks) {
  for (const Range channels : Tiles(piece.channels, kSweepChannels)) {
    Backward<T>(grad, piece, blocks, channels).run();
  }
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
