// The peer of the benchmarks: the selective scan as one would write it in plain C++, a float at a time.
#pragma once

#include <cmath>
#include <cstdint>

namespace mamba::benchmarks {

inline float scalar_softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}
inline float scalar_silu(float x) {
  return x / (1 + std::exp(-x));
}

/// u, delta, z, out (dim, length), A (dim, dstate), B and C (dstate, length), D and bias (dim); one batch row.
struct ScalarScan {
  int64_t dim, length, dstate;
  const float *u, *delta, *A, *B, *C, *D, *z, *bias;
  float *out, *state;  // state (dim, dstate)

  void channel(int64_t d) const {
    float* h = state + d * dstate;
    for (int64_t n = 0; n < dstate; ++n) h[n] = 0;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t at = d * length + t;
      const float step = scalar_softplus(delta[at] + bias[d]), input = step * u[at];
      float y = 0;
      for (int64_t n = 0; n < dstate; ++n) {
        h[n] = std::exp(step * A[d * dstate + n]) * h[n] + input * B[n * length + t];
        y += C[n * length + t] * h[n];
      }
      out[at] = (y + D[d] * u[at]) * scalar_silu(z[at]);
    }
  }
};

/// One decoding step of one row, in place: state and A (dim, dstate), B and C (dstate), the others (dim).
struct ScalarUpdate {
  int64_t dim, dstate;
  float* state;
  const float *x, *dt, *A, *B, *C, *D, *z, *bias;
  float* out;

  void channel(int64_t d) const {
    const float step = scalar_softplus(dt[d] + bias[d]), input = step * x[d];
    float y = 0;
    for (int64_t n = 0; n < dstate; ++n) {
      float& h = state[d * dstate + n];
      h = std::exp(step * A[d * dstate + n]) * h + input * B[n];
      y += C[n] * h;
    }
    out[d] = (y + D[d] * x[d]) * scalar_silu(z[d]);
  }
};

}  // namespace mamba::benchmarks
