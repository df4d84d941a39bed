// Number types of the kernels: 16-bit floats as storage, complex states, and their conversions. Host and device.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define MAMBA_HD __host__ __device__
#else
#define MAMBA_HD
#endif

namespace mamba::kernels {

template <class To, class From>
MAMBA_HD inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

/// IEEE binary16, storage only: arithmetic happens in float.
struct Float16 {
  uint16_t bits = 0;
};

/// The upper half of a float, storage only: arithmetic happens in float.
struct BFloat16 {
  uint16_t bits = 0;
};

MAMBA_HD inline float widen(Float16 x) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(x.bits));
#else
  // The 15 bits below the sign land in a float whose exponent bias is 112 too small: multiply by 2^112 to mend it.
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  float value = bit_cast<float>(magnitude) * 0x1p112f;
  if ((x.bits & 0x7c00) == 0x7c00) value = bit_cast<float>(magnitude | 0x7f800000u);
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  return bit_cast<float>(bit_cast<uint32_t>(value) | sign);
#endif
}

MAMBA_HD inline float widen(BFloat16 x) {
  return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
MAMBA_HD inline float widen(float x) {
  return x;
}
MAMBA_HD inline double widen(double x) {
  return x;
}

/// Rounds to nearest even, as every conversion below does.
MAMBA_HD inline void narrow(float value, Float16& to) {
#ifdef __CUDA_ARCH__
  to.bits = __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // rounds to infinity
  } else if (magnitude < 0x38800000u) {
    // Subnormal: adding 1/2 leaves the mantissa, rounded to nearest even, in the low bits.
    half = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  to.bits = static_cast<uint16_t>(half | sign);
#endif
}

MAMBA_HD inline void narrow(float value, BFloat16& to) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
MAMBA_HD inline void narrow(float value, float& to) {
  to = value;
}
MAMBA_HD inline void narrow(float value, double& to) {
  to = value;
}
MAMBA_HD inline void narrow(double value, double& to) {
  to = value;
}
MAMBA_HD inline void narrow(double value, float& to) {
  to = static_cast<float>(value);
}
template <class To>
MAMBA_HD inline void narrow(double value, To& to) {
  narrow(static_cast<float>(value), to);
}

/// A complex number laid out as torch and C++ lay it out: real part, imaginary part.
template <class Real>
struct Complex {
  Real re = 0, im = 0;

  MAMBA_HD Complex() {}
  MAMBA_HD Complex(Real real) : re(real) {}
  MAMBA_HD Complex(Real real, Real imaginary) : re(real), im(imaginary) {}

  MAMBA_HD Complex& operator+=(Complex x) {
    re += x.re;
    im += x.im;
    return *this;
  }
};

template <class Real>
MAMBA_HD inline Complex<Real> operator+(Complex<Real> x, Complex<Real> y) {
  return {x.re + y.re, x.im + y.im};
}
template <class Real>
MAMBA_HD inline Complex<Real> operator*(Complex<Real> x, Complex<Real> y) {
  return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}
template <class Real>
MAMBA_HD inline Complex<Real> operator*(Real x, Complex<Real> y) {
  return {x * y.re, x * y.im};
}

/// What float, double and Complex share, so that one formula serves all.
template <class State>
struct Number {
  using Real = State;
  static constexpr bool kIsComplex = false;
};
template <class R>
struct Number<Complex<R>> {
  using Real = R;
  static constexpr bool kIsComplex = true;
};

template <class Real>
MAMBA_HD inline Real conj(Real x) {
  return x;
}
template <class Real>
MAMBA_HD inline Complex<Real> conj(Complex<Real> x) {
  return {x.re, -x.im};
}

/// Re(x conj(y)): the derivative of a real loss along y when its gradient is x.
template <class Real>
MAMBA_HD inline Real along(Real x, Real y) {
  return x * y;
}
template <class Real>
MAMBA_HD inline Real along(Complex<Real> x, Complex<Real> y) {
  return x.re * y.re + x.im * y.im;
}

/// The type in which values stored as T are computed with.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace mamba::kernels
