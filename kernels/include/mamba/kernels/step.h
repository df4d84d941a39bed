// The formulas of the selective scan, each written once, for host and device.
//
// Source of the maths: Gu & Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (arXiv 2312.00752),
// sections 3.2-3.3, with the simplified (Euler) B of the published models:
//
//   delta' = softplus(delta + delta_bias)
//   h_t    = exp(delta' A) h_{t-1} + delta' B_t u_t        y_t = sum_n C_t h_t   (complex A: twice the real part)
//   out    = (y + D u) silu(z)
//
// Gradients of complex quantities follow torch: for a real loss, dL = Re(conj(gradient) dx).
#pragma once

#include "mamba/kernels/numeric.h"

namespace mamba::kernels {

using std::cos;
using std::exp;
using std::log1p;
using std::sin;

template <class Real>
MAMBA_HD inline Real softplus(Real x) {
  constexpr Real kThreshold = 20;  // torch's: the identity from here on
  return x > kThreshold ? x : log1p(exp(x));
}

template <class Real>
MAMBA_HD inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + exp(-x));
}

/// d softplus(x) / dx.
template <class Real>
MAMBA_HD inline Real softplus_slope(Real x) {
  return x > Real(20) ? Real(1) : sigmoid(x);
}

template <class Real>
MAMBA_HD inline Real silu(Real x) {
  return x * sigmoid(x);
}

/// d silu(x) / dx.
template <class Real>
MAMBA_HD inline Real silu_slope(Real x) {
  const Real s = sigmoid(x);
  return s * (Real(1) + x * (Real(1) - s));
}

/// exp(delta' A), the factor by which a step shrinks or grows a state.
template <class Real>
MAMBA_HD inline Real decay(Real step, Real A) {
  return exp(step * A);
}
template <class Real>
MAMBA_HD inline Complex<Real> decay(Real step, Complex<Real> A) {
  const Real magnitude = exp(step * A.re), angle = step * A.im;
  return {magnitude * cos(angle), magnitude * sin(angle)};
}

/// One state's share of y.
template <class Real>
MAMBA_HD inline Real readout(Real C, Real h) {
  return C * h;
}
template <class Real>
MAMBA_HD inline Real readout(Complex<Real> C, Complex<Real> h) {
  return Real(2) * (C.re * h.re - C.im * h.im);
}

/// The gradient of readout's `h` (given `C`) or of its `C` (given `h`), for a gradient `dy` of y.
template <class State>
MAMBA_HD inline State readout_adjoint(typename Number<State>::Real dy, State other) {
  constexpr int kScale = Number<State>::kIsComplex ? 2 : 1;
  return kScale * dy * conj(other);
}

/// What one state contributes to the gradients of a step, from the adjoint `g` of the state after it.
template <class State>
struct StepAdjoint {
  using Real = typename Number<State>::Real;
  Real du, dstep;
  State dA, dB, dprevious;

  /// `decayed` is exp(delta' A) h_{t-1}, formed directly: as h_t - delta' B u it would cancel.
  MAMBA_HD StepAdjoint(State g, State a, State decayed, Real step, Real u, State A, State B) {
    const Real input = along(g, B);
    const State w = g * conj(decayed);
    du = step * input;
    dstep = along(w, A) + u * input;
    dA = step * w;
    dB = step * u * g;
    dprevious = g * conj(a);
  }
};

}  // namespace mamba::kernels
