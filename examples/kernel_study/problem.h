// The scan that the three kernels and their simulations compute, and its formulas, once for host and device.
//
//     h[t] = exp(delta[t] A) h[t-1] + delta[t] B[t] u[t],    h = 0 before the first step
//     y[t] = sum over the states of C[t] h[t]
//
// for each batch row and channel, from Gu & Dao, "Mamba" (arXiv 2312.00752), sections 3.2-3.3, without the options of
// mamba::selective_scan.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define MAMBA_STUDY_BOTH __host__ __device__ __forceinline__
#else
#define MAMBA_STUDY_BOTH inline
#endif

namespace mamba_study {

constexpr int kWarpSize = 32;
constexpr int kMostStates = 32;  // a warp can give each state a lane

/// Along which dimension four neighbours may be read with one aligned 16-byte instruction.
enum class Quads { kNone, kAlongTime, kAlongRows };

/// A tensor (batch, row, time). Strides in elements.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, time_stride = 0;
  Quads quads = Quads::kNone;

  MAMBA_STUDY_BOTH T* row(int64_t batch, int64_t row) const { return data + batch * batch_stride + row * row_stride; }
  /// Whether neighbours in memory are neighbouring rows, as the channels of a [seqlen, batch, dim] tensor.
  MAMBA_STUDY_BOTH bool along_rows() const { return row_stride == 1 && time_stride != 1; }
};

/// float32, on one device. Rows of u, delta and y are channels. Rows of B and C are states where dstate > 1; with one
/// state they are channels, 0 apart where all channels share a row.
struct Problem {
  int64_t batch = 0, dim = 0, length = 0;
  int dstate = 1;
  const float* A = nullptr;  // (dim, dstate), contiguous
  Rows<const float> u, delta, B, C;
  Rows<float> y;

  MAMBA_STUDY_BOTH int64_t coefficient_row(int64_t channel, int state) const { return dstate == 1 ? channel : state; }
  /// How many rows of B and C follow, with that of `channel`, for the channels from it on.
  MAMBA_STUDY_BOTH int64_t coefficient_rows(int64_t channel) const { return dstate == 1 ? dim - channel : dstate; }
};

MAMBA_STUDY_BOTH constexpr int64_t ceil_div(int64_t x, int64_t by) {
  return (x + by - 1) / by;
}

/// exp(delta A) is computed as 2^(delta rate): the GPU has an instruction for powers of two.
MAMBA_STUDY_BOTH float rate_of(float A) {
  constexpr float kLog2E = 1.44269502f;
  return A * kLog2E;
}
MAMBA_STUDY_BOTH float decay_of(float delta, float rate) {
  return exp2f(delta * rate);
}

/// What some consecutive steps do to a state: h becomes decay * h + input. A single step is such a pair too.
struct Pair {
  float decay = 1, input = 0;

  MAMBA_STUDY_BOTH float apply(float h) const { return decay * h + input; }
};

/// The steps of `first` and then those of `second`, as one pair. Associative, so neighbours may be joined in any order:
/// that is what lets lanes work on different times at once.
MAMBA_STUDY_BOTH Pair join(const Pair& first, const Pair& second) {
  return {first.decay * second.decay, second.apply(first.input)};
}

}  // namespace mamba_study
