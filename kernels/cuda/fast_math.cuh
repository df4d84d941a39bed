// The formulas of step.h in single precision, cheap enough for an inner loop. NaN goes through all of them.
#pragma once

#include "cuda/intrinsics.cuh"

namespace mamba::kernels::cuda {

constexpr float kLog2E = 1.44269502e+0f;  // log2(e), and what rounding it to float left over
constexpr float kLog2ERest = 1.92596303e-8f;
constexpr float kLn2 = 0.693147182f;

/// A factor for exponents of 2. Finite, so that a masked step of size 0 keeps the state whatever A is.
__device__ __forceinline__ float exponent_rate(float A) {
  constexpr float kLargest = 3.40282347e+38f;
  const float rate = A * kLog2E;
  return rate < -kLargest ? -kLargest : rate > kLargest ? kLargest : rate;
}

/// exp(x) for x <= 0, accurate to the last bits also where it is tiny.
__device__ __forceinline__ float exp_of_negative(float x) {
  x = fmaxf(x, -104.f);  // exp(-104) is 0 in float
  const float exponent = x * kLog2E;
  const float rest = fmaf(x, kLog2ERest, fmaf(x, kLog2E, -exponent));
  const float power = exp2_approximate(exponent);
  return fmaf(power, rest * kLn2, power);
}

/// log(1 + x) for 0 <= x <= 1: x times a minimax polynomial, relative error 2e-7.
__device__ __forceinline__ float log1p_of_fraction(float x) {
  float p = 0.005232685711234808f;
  p = fmaf(p, x, -0.029505206272006035f);
  p = fmaf(p, x, 0.07822589576244354f);
  p = fmaf(p, x, -0.13663241267204285f);
  p = fmaf(p, x, 0.19106005132198334f);
  p = fmaf(p, x, -0.2484298199415207f);
  p = fmaf(p, x, 0.3331909775733948f);
  p = fmaf(p, x, -0.4999949336051941f);
  p = fmaf(p, x, 0.9999999403953552f);
  return p * x;
}

/// log(1 + exp(x)) in the form that never overflows: max(x, 0) + log(1 + exp(-|x|)).
__device__ __forceinline__ float fast_softplus(float x) {
  return (x < 0.f ? 0.f : x) + log1p_of_fraction(exp_of_negative(-fabsf(x)));
}

/// softplus(x) and its slope, the sigmoid of x.
__device__ __forceinline__ float fast_softplus(float x, float& slope) {
  const float power = exp_of_negative(-fabsf(x));
  slope = (x >= 0.f ? 1.f : power) * reciprocal_approximate(1.f + power);
  return (x < 0.f ? 0.f : x) + log1p_of_fraction(power);
}

__device__ __forceinline__ float fast_sigmoid(float x) {
  return reciprocal_approximate(1.f + exp2_approximate(-kLog2E * x));
}

}  // namespace mamba::kernels::cuda
