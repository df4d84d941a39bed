// A sequence cut into chunks of time: what each chunk hands on to the next.
#pragma once

#include "cpu/tile.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// The memory behind ScanParams::carries.
template <class Real>
class Carries {
 public:
  Carries(const ScanParams& p, int64_t chunks)
      : states_(p.dim * p.dstate),
        ends_(static_cast<Real*>(p.carries)),
        running_(ends_ + (chunks - 1) * states_),
        steps_(running_ + (chunks - 1) * states_),
        dim_(p.dim) {}

  /// The state, (dim, dstate), in which a chunk ends that began with zero; the first one began with the initial state.
  Real* end(int64_t chunk) const { return ends_ + chunk * states_; }
  /// Where the state of a chunk is kept between tiles.
  Real* running(int64_t chunk) const { return running_ + chunk * states_; }
  /// The sum of a chunk's steps, (dim).
  Real* steps(int64_t chunk) const { return steps_ + chunk * dim_; }

 private:
  const int64_t states_;
  Real *const ends_, *const running_, *const steps_;
  const int64_t dim_;
};

/// `state` after steps of `sum` without input. In four factors, none of which overflows before the product does; what
/// is zero stays zero however it would grow.
template <class V>
MAMBA_INLINE V after(V state, V sum, V A_log2e) {
  const V factor = decay<true>(sum * Element<V>(0.25), A_log2e);
  const V grown = state * factor * factor * factor * factor;
  return state == V{} ? state : grown;
}

/// The state in which a chunk begins, from what those before it handed on.
template <class T>
void chain(const ScanParams& p, const ScanPiece& piece, Wide<T>* to) {
  using Real = Wide<T>;
  using V = Vec<Real>;
  const Carries<Real> carries(p, piece.chunks);
  for (const Range channels : Tiles(piece.channels, kLanes<Real>)) {
    const Lanes<T> lanes{piece, p.dim, channels};
    const auto A = lanes.states(static_cast<const Real*>(p.A), 0, p.dstate);
    for (int64_t n = 0; n < p.dstate; ++n) {
      const V A_log2e = scaled_by_log2e(A.column(n));
      V h = lanes.states(carries.end(0), 0, p.dstate).column(n);
      for (int64_t i = 1; i < piece.chunk; ++i) {
        h = after(h, lanes.parameter(carries.steps(i)), A_log2e) + lanes.states(carries.end(i), 0, p.dstate).column(n);
      }
      lanes.states(to, 0, p.dstate).set_column(n, h);
    }
  }
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
