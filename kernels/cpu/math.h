// exp, softplus and the gate, lane by lane, for float and double: what step.h says, in a form that vectorises.
#pragma once

#include "cpu/vec.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Polynomials that are minimax in their relative error, lowest power first; the leading 1 is implied.
template <class Real>
struct Constants;

template <>
struct Constants<float> {
  static constexpr int kMantissaBits = 23, kBias = 127;
  // Each in two parts, the second for what rounding left of the first. The first of ln 2 times a whole exponent of 2 is
  // exact.
  static constexpr float kLog2e = 0x1.715476p+0f, kLog2eRest = 0x1.4ae0cp-26f;
  static constexpr float kLn2 = 0x1.62e4p-1f, kLn2Rest = 0x1.7f7d1cp-20f;
  // 2^r, |r| <= 1/2, to 3e-9. The first is ln 2 itself: near 1 the error is relative to the distance from 1. (One term
  // less errs by 1e-7, always in the same direction for the same decay, which sums over time add up.)
  static constexpr float kExp2[] = {0.69314718056f,   0.24022647738f,   0.055503599346f,
                                    0.0096185058355f, 0.0013390806271f, 0.00015326471475f};
  // log1p(e) / e, 0 <= e <= 1, to 3.4e-8.
  static constexpr float kLog1p[] = {-0.49999647963f, 0.33321322611f,  -0.24857163613f,  0.19153654738f,
                                     -0.13753801949f, 0.079204531441f, -0.030065790054f, 0.0053648238354f};
};

template <>
struct Constants<double> {
  static constexpr int kMantissaBits = 52, kBias = 1023;
  static constexpr double kLog2e = 0x1.71547652b82fep+0, kLog2eRest = 0x1.777d0ffda0d24p-56;
  static constexpr double kLn2 = 0x1.62e42feep-1, kLn2Rest = 0x1.a39ef35793c76p-33;
  // To 1.8e-17.
  static constexpr double kExp2[] = {0.69314718055994569676,   0.24022650695910098007,   0.055504108664790393824,
                                     0.0096181291076070023289, 0.0013333558153440097896, 0.00015403530441572142241,
                                     1.5252727385089766229e-5, 1.3215442675334396371e-6, 1.0180647695976877741e-7,
                                     7.0725704111285270208e-9, 4.0780671075459142926e-10};
  // To 9.5e-18.
  static constexpr double kLog1p[] = {
      -0.49999999999999459687,   0.33333333333235042191,   -0.24999999993676445449,    0.19999999791318359551,
      -0.16666662498409648413,   0.14285658895964270493,   -0.12499479601292563291,    0.11107505922994218059,
      -0.099810145918291932754,  0.090131525746926326571,  -0.080812089857019934726,   0.070355380115452060246,
      -0.057501968405873472218,  0.042300076704505989294,  -0.026743936391728536409,   0.013838573305882280353,
      -0.0055431007749964438698, 0.0015957382684543746782, -0.00029176061554624388155, 0.000025329880843114147203};
};

/// 1 + c[0] x + c[1] x^2 + ...
template <class V, int kCount>
MAMBA_INLINE V polynomial(const Element<V> (&c)[kCount], V x) {
  V sum = broadcast<V>(c[kCount - 1]);
  for (int i = kCount - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum * x + Element<V>(1);
}

/// Exponents of 2 for which exp2 needs no guard: what it yields is a normal number, with room for rounding.
template <class Real>
struct SafeExponents {
  static constexpr Real kLeast = 4 - Constants<Real>::kBias, kMost = Constants<Real>::kBias - 1;
};

/// Added to x = k + r with |r| <= 1/2, it leaves k, the whole part, in the lowest bits: for guarded use k + bias - 1,
/// which in the place of an exponent makes half of 2^k.
template <bool kGuarded, class Real>
constexpr Real kShifter = Real((int64_t{3} << (Constants<Real>::kMantissaBits - 1)) +
                               (kGuarded ? Constants<Real>::kBias - 1 : 0));

/// 2^(k + r), from what adding kShifter made of the sum. Results below 2^(4 - bias) become 0. Unguarded it is for safe
/// exponents only, and the same there to the bit.
template <bool kGuarded, class V>
MAMBA_INLINE V exp2(V shifted, V r) {
  using Real = Element<V>;
  using C = Constants<Real>;
  const V mantissa = polynomial(C::kExp2, r);
  const Integers<V> exponent = bits<Integers<V>>(shifted) << C::kMantissaBits;
  if constexpr (!kGuarded) return bits<V>(bits<Integers<V>>(mantissa) + exponent);

  // Half of 2^k is in range when 2^k itself just is not. A product keeps the NaN of a mantissa.
  const V power = mantissa * bits<V>(exponent) * Real(2), k = shifted - kShifter<true, Real>;
  const V grown = k > Real(C::kBias + 1) ? broadcast<V>(Real(__builtin_huge_val())) : power;
  return k < SafeExponents<Real>::kLeast ? V{} : grown;
}

template <class V>
MAMBA_INLINE V exp(V x) {
  using C = Constants<Element<V>>;
  const V shifted = x * C::kLog2e + kShifter<true, Element<V>>;
  const V k = shifted - kShifter<true, Element<V>>;
  return exp2<true>(shifted, ((x - k * C::kLn2) - k * C::kLn2Rest) * C::kLog2e);
}

/// A as decay() wants it.
template <class V>
MAMBA_INLINE V scaled_by_log2e(V A) {
  using C = Constants<Element<V>>;
  return A * C::kLog2e + A * C::kLog2eRest;
}

/// exp(delta' A). Fused, the product is never rounded.
template <bool kGuarded, class V>
MAMBA_INLINE V decay(V step, V A_log2e) {
  const V shifted = step * A_log2e + kShifter<kGuarded, Element<V>>;
  const V k = shifted - kShifter<kGuarded, Element<V>>;
  return exp2<kGuarded>(shifted, step * A_log2e - k);
}

template <class V>
MAMBA_INLINE V sigmoid(V x) {
  return Element<V>(1) / (Element<V>(1) + exp(-x));
}

/// softplus(x) and its derivative. Above 20 they are x and 1, as torch's are; below, the error is relative to the
/// result however small that is.
template <class V>
struct Softplus {
  V value, slope;

  MAMBA_INLINE explicit Softplus(V x) {
    using Real = Element<V>;
    const V one = broadcast<V>(Real(1)), e = exp(x < Real(0) ? x : -x);
    const V bent = e * polynomial(Constants<Real>::kLog1p, e) + (x > Real(0) ? x : V{});
    value = x > Real(20) ? x : bent;
    slope = (x < Real(0) ? e : one) / (one + e);
    slope = x > Real(20) ? one : slope;
  }
};

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
