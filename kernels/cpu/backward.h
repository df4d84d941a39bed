// The backward: tiles from last to first, each recomputed from its checkpoint and retraced, for several vectors of
// channels at a time, whose terms of the gradients of B and C are added up.
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
  static constexpr int kSteps = kCheckpointSpacing, kMostVectors = kSweepChannels / kLanes<Real>;

 public:
  Backward(const ScanGradParams& params, const ScanPiece& piece_, const ChannelBlocks& blocks, Range channels_)
      : grad(params),
        p(params.scan),
        piece(piece_),
        channels(channels_),
        dB(p, p.B, params.dB, blocks, piece_),
        dC(p, p.C, params.dC, blocks, piece_) {}

  void run() {
    enter();
    const bool shared = is_shared(p.B, p.dim, channels) && is_shared(p.C, p.dim, channels);
    for (tile = ceil_div(piece.steps, kSteps) - 1; tile >= 0; --tile) {
      const int64_t first = tile * kSteps, end = first + kSteps;
      const Range scanned{first, end < piece.steps ? end : piece.steps};
      time = piece.time(scanned, p.reverse);
      steps = scanned.end - scanned.begin;
      for (int k = 0; k < vectors(); ++k) load_inputs(lanes(k), tiles[k]);
      if (shared) {
        sweep_states<Real>();
      } else {
        sweep_states<V>();
      }
      for (int k = 0; k < vectors(); ++k) store_gradients(lanes(k), tiles[k]);
    }
  }

 private:
  const ScanGradParams& grad;
  const ScanParams& p;
  const ScanPiece& piece;
  const Range channels;
  const CoefficientSums<Real> dB, dC;
  int64_t tile = 0, steps = 0;  // the tile at hand
  Range time;
  AdjointTile<V, kSteps> tiles[kMostVectors];

  int vectors() const { return static_cast<int>(ceil_div(channels.end - channels.begin, kLanes<Real>)); }
  Lanes<T> lanes(int k) const {
    const int64_t first = channels.begin + k * kLanes<Real>, end = first + kLanes<Real>;
    return {piece, p.dim, {first, end < channels.end ? end : channels.end}};
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

  void load_inputs(const Lanes<T>& at, AdjointTile<V, kSteps>& x) {
    const V bias = at.parameter(p.delta_bias), skip = at.parameter(p.D);
    at.load(p.u, time, x.u);
    at.load(p.delta, time, x.step);
    if (grad.dout.data) at.load(grad.dout, time, x.dy);
    if (p.z.data) at.load(p.z, time, x.dgate);
    x.bounds = {};
    for (int64_t t = 0; t < steps; ++t) {
      const V raw = x.step[t] + bias;
      x.step[t] = p.delta_softplus ? softplus(raw) : raw;
      x.slope[t] = p.delta_softplus ? softplus_slope(raw) : broadcast<V>(Real(1));
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

  /// States n, n + 1, ... n + kStates - 1 of all channels.
  template <bool kSums, class Entry, int kStates>
  void sweep(int64_t n) {
    constexpr bool kShared = std::is_same_v<Entry, Real>;
    alignas(kVectorBytes) Entry B[kStates][kSteps], C[kStates][kSteps];
    StateTile<V, kStates, kSteps> states;
    if (kShared) load_coefficients(channels, n, B, C);
    states.clear_sums();
    // The last vector first: it may repeat a channel, whose repeated terms are cleared before any are added.
    for (int k = vectors() - 1; k >= 0; --k) {
      const Lanes<T> at = lanes(k);
      if (!kShared) load_coefficients(at.channels, n, B, C);
      sweep_lanes<kSums>(at, n, B, C, tiles[k], states);
      if constexpr (!kSums) continue;
      if constexpr (kShared) {
        if (at.count() < kLanes<Real>) states.clear_sums(at.count());
      } else {
        dB.add_separate(at.channels, n, time, states.dB);
        dC.add_separate(at.channels, n, time, states.dC);
        states.clear_sums();
      }
    }
    if constexpr (kSums && kShared) {
      dB.add_shared(channels.begin, n, time, states.dB);
      dC.add_shared(channels.begin, n, time, states.dC);
    }
  }

  template <class Entry, int kStates>
  void load_coefficients(Range of, int64_t n, Entry (&B)[kStates][kSteps], Entry (&C)[kStates][kSteps]) const {
    load_coefficient_of<T>(p.B, p.dim, piece.batch, of, n, kStates, time, B);
    load_coefficient_of<T>(p.C, p.dim, piece.batch, of, n, kStates, time, C);
  }

  template <bool kSums, class Entry, int kStates>
  void sweep_lanes(const Lanes<T>& at, int64_t n, const Entry (&B)[kStates][kSteps], const Entry (&C)[kStates][kSteps],
                   AdjointTile<V, kSteps>& x, StateTile<V, kStates, kSteps>& states) const {
    V A[kStates], A_log2e[kStates], h[kStates], g[kStates], dA[kStates];
    load_columns(at.states(static_cast<const Real*>(p.A), 0, p.dstate), n, 1, kStates, A);
    bool safe = true;
    for (int j = 0; j < kStates; ++j) {
      A_log2e[j] = scaled_by_log2e(A[j]);
      safe = safe && x.bounds.are_safe_for(A_log2e[j]);
      h[j] = checkpoint(at, n + j);
    }
    const Walk forwards({0, steps}, steps, p.reverse), backwards({0, steps}, steps, !p.reverse);
    safe ? recompute<false, kSums>(forwards, A_log2e, B, C, h, x, states)
         : recompute<true, kSums>(forwards, A_log2e, B, C, h, x, states);

    const Rows<Real> adjoints = at.states(static_cast<Real*>(grad.dinitial_state), piece.sequence, p.dstate);
    load_columns(adjoints, n, 1, kStates, g);
    retrace<kSums>(backwards, A, B, C, g, dA, x, states);
    store_columns(adjoints, n, 1, kStates, g);
    if (grad.dA) {
      const Rows<Real> sums = at.states(static_cast<Real*>(grad.dA), piece.sequence, p.dstate);
      V total[kStates];
      load_columns(sums, n, 1, kStates, total);
      for (int j = 0; j < kStates; ++j) total[j] += dA[j];
      store_columns(sums, n, 1, kStates, total);
    }
  }

  V checkpoint(const Lanes<T>& at, int64_t n) const {
    const int64_t slot = piece.batch * p.checkpoint_slots + piece.slot + tile;
    return at.parameter(static_cast<const Real*>(p.checkpoints) + (slot * p.dstate + n) * p.dim);
  }

  void store_gradients(const Lanes<T>& at, AdjointTile<V, kSteps>& x) const {
    const V skip = at.parameter(p.D);
    V dD{}, dbias{};
    for (int64_t t = 0; t < steps; ++t) {
      dD += x.dy[t] * x.u[t];
      x.dy[t] = (p.D ? skip * x.dy[t] : V{}) + x.step[t] * x.gB[t];
      x.wA[t] = (x.wA[t] + x.u[t] * x.gB[t]) * x.slope[t];
      dbias += x.wA[t];
      x.dgate[t] *= x.y[t];
    }
    if (grad.du.data) at.store(grad.du, time, x.dy);
    if (grad.ddelta.data) at.store(grad.ddelta, time, x.wA);
    if (grad.dz.data) at.store(grad.dz, time, x.dgate);
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
