// What one thread does for the adjoint carries of chunks: see adjoint_carry.cuh.
#pragma once

#include "cuda/coefficients.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/pair_access.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class T_, PairAccess access>
struct CarryTile {
  using T = T_;
  static constexpr PairAccess kAccess = access;
  static constexpr int kLaneSteps = 8, kPair = 2, kWarps = CarryShape::kWarps, kStates = CarryShape::kStates;
  static constexpr int kThreads = kWarps * kWarpSize, kSteps = kWarpSize * kLaneSteps;
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Source = CoefficientSource<Coefficients>;
  using Plane = PairPlane<T, access>;

  struct Shared {
    typename Coefficients::Rows C[2];
    typename Source::UnderWay C_under_way;
    Source C_source;
    Place place;
    Plane delta, z, dout;
    alignas(8) float rates[kWarps][kStates][kPair];
    unsigned largest_C[kWarps];  // of each warp's share: see magnitude()
  };
};

/// Orders magnitudes: those of NaN and infinity are the greatest.
__device__ __forceinline__ unsigned magnitude(float x) {
  return bit_cast<unsigned>(x) & 0x7fffffffu;
}

__device__ __forceinline__ unsigned largest_of_warp(unsigned x) {
#pragma unroll
  for (int by = 1; by < kWarpSize; by *= 2) {
    const unsigned other = __shfl_xor_sync(kWholeWarp, x, by);
    x = x > other ? x : other;
  }
  return x;
}

template <class Tile>
class AdjointCarry {
  using T = typename Tile::T;
  using Raw = PairSteps<T, Tile::kAccess>;
  static constexpr int K = Tile::kLaneSteps, kPair = Tile::kPair, kStates = Tile::kStates;
  using Steps = float[kPair][K];

 public:
  __device__ AdjointCarry(const ScanGradParams& params, typename Tile::Shared& block_shared, int block_first_state)
      : grad(params),
        p(params.scan),
        shared(block_shared),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize),
        row(kPair * warp),
        first_state(block_first_state),
        channels(shared.place.channels - row) {
    // In a warp, each lane has a state of a channel; and so it will when all is added up.
    const int state = first_state + lane / kPair, c = lane % kPair;
    const bool exists = c < channels && state < p.dstate;
    const int64_t channel = shared.place.channel + row;
    const float* A = static_cast<const float*>(p.A) + channel * p.dstate;
    rate = exists ? exponent_rate(A[c * p.dstate + state]) : 0.f;
    shared.rates[warp][lane / kPair][c] = rate;
    const float* all_biases = static_cast<const float*>(p.delta_bias);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      bias[i] = all_biases && i < channels ? all_biases[channel + i] : 0.f;
      running[i] = 0;
#pragma unroll
      for (int n = 0; n < kStates; ++n) sums[n][i] = 0;
    }
    is_odd = rate > 0;
    __syncwarp();
  }

  __device__ __forceinline__ void fetch(int first_step, int end) {
    const int begin = first_step + lane * K, left = end - begin;
    if (channels >= kPair && left >= K) {
      fetch_as<true>(begin, left);
    } else {
      fetch_as<false>(begin, left);
    }
  }

  /// The gradients of y and the sums of delta' of the tile that fetch() loaded.
  __device__ __forceinline__ void begin_tile(int first_step, int end) {
    const int left = end - (first_step + lane * K);
    Steps z;
    raw_delta.widen_into(exponent);
    raw_z.widen_into(z);
    raw_dout.widen_into(dy);
    for (Raw* raw : {&raw_delta, &raw_z, &raw_dout}) raw->clear();  // else they would be kept until the next fetch()
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      prepare(exponent[c], z[c], dy[c], bias[c]);
      float total = 0;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        is_odd = is_odd || exponent[c][k] < 0.f;
        total += k < left ? exponent[c][k] : 0.f;
        exponent[c][k] = total;
        const unsigned size = magnitude(dy[c][k]);
        largest_dy = largest_dy > size ? largest_dy : size;
      }
      float until = total;
#pragma unroll
      for (int by = 1; by < kWarpSize; by *= 2) {
        const float earlier = __shfl_up_sync(kWholeWarp, until, by);
        until += lane >= by ? earlier : 0.f;
      }
      const float before = running[c] + (until - total);
#pragma unroll
      for (int k = 0; k < K; ++k) exponent[c][k] += before;
      base[c] = running[c];
      running[c] += __shfl_sync(kWholeWarp, until, kWarpSize - 1);
    }
  }

  __device__ __forceinline__ void sweep(const typename Tile::Coefficients::Rows& C_rows, int states) {
    constexpr float kGone = -127;  // powers of 2 below the normal range are 0
    const float* from = &C_rows[0][Tile::Coefficients::column(lane * K)];
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (n >= states) break;
      const float2 pair = *reinterpret_cast<const float2*>(shared.rates[warp][n]);
      if (pair.x * base[0] < kGone && pair.y * base[1] < kGone) continue;
      const float rates[kPair] = {pair.x, pair.y};
      float C[K];
#pragma unroll
      for (int k = 0; k < K; k += 4) {
        const float4 four = load_float4(from + n * Tile::Coefficients::kPitch + k);
        C[k] = four.x, C[k + 1] = four.y, C[k + 2] = four.z, C[k + 3] = four.w;
      }
#pragma unroll
      for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int c = 0; c < kPair; ++c) {
          sums[n][c] = fmaf(exp2_approximate(rates[c] * exponent[c][k]), C[k] * dy[c][k], sums[n][c]);
        }
      }
    }
  }
  /// The largest of this thread's share of a tile of C.
  __device__ __forceinline__ void inspect(const typename Tile::Coefficients::Rows& C_rows, int states) {
    constexpr int kPerRow = Tile::kSteps / 4, kAtOnce = Tile::kThreads / kPerRow;
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int n = 0; n < kStates; n += kAtOnce) {
      const int state = n + thread / kPerRow;
      if (state >= states) break;
      const float4 four = load_float4(&C_rows[state][Tile::Coefficients::column(thread % kPerRow * 4)]);
      for (const float x : {four.x, four.y, four.z, four.w}) {
        largest_C = largest_C > magnitude(x) ? largest_C : magnitude(x);
      }
    }
  }

  __device__ __forceinline__ void store(const CarryTask& task, int64_t chunk_row, int begin, int end) {
    shared.largest_C[warp] = largest_of_warp(largest_C);
    __syncthreads();
    unsigned largest = 0;
#pragma unroll
    for (const unsigned x : shared.largest_C) largest = largest > x ? largest : x;
    const unsigned product = magnitude(bit_cast<float>(largest) * bit_cast<float>(largest_of_warp(largest_dy)));
    constexpr unsigned kInfinity = 0x7f800000u;
    const bool is_finite =
        product < kInfinity && magnitude(running[0]) < kInfinity && magnitude(running[1]) < kInfinity;
    float sum = sum_over_lanes();
    const int state = first_state + lane / kPair, c = lane % kPair;
    const bool exists = c < channels && state < p.dstate;
    if (__any_sync(kWholeWarp, is_odd || !is_finite)) sum = exists ? step_by_step(state, c, begin, end) : 0.f;
    if (!exists) return;
    const int64_t channel = shared.place.channel + row + c;
    task.adjoints[(chunk_row * p.dstate + state) * p.dim + channel] = sum;
    if (state == 0) task.exponents[chunk_row * p.dim + channel] = c == 0 ? running[0] : running[1];
  }

 private:
  template <bool is_whole>
  __device__ __forceinline__ void fetch_as(int begin, int left) {
    fetch_one<is_whole>(raw_delta, shared.delta, begin, left);
    fetch_one<is_whole>(raw_dout, shared.dout, begin, left);
    fetch_one<is_whole>(raw_z, shared.z, begin, left);
  }
  template <bool is_whole>
  __device__ __forceinline__ void fetch_one(Raw& raw, const typename Tile::Plane& shared_plane, int begin, int left) {
    const typename Tile::Plane plane = shared_plane;
    if (!plane.origin) return raw.clear();
    raw.template load<is_whole>(plane, plane.at(row, begin), channels, left);
  }

  template <int kCount>
  __device__ __forceinline__ void prepare(float (&delta)[kCount], const float (&z)[kCount], float (&dout)[kCount],
                                          float channel_bias) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) delta[k] += channel_bias;
    if (p.delta_softplus) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) delta[k] = fast_softplus(delta[k]);
    }
    if (p.z.data) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) dout[k] *= z[k] * fast_sigmoid(z[k]);
    }
  }

  /// Adds each state of each channel up over the lanes; the lane that the constructor named gets it.
  __device__ __forceinline__ float sum_over_lanes() {
    float x[kStates * kPair];
#pragma unroll
    for (int i = 0; i < kStates * kPair; ++i) x[i] = sums[i / kPair][i % kPair];
    share_out<kStates * kPair / 2>(x);
    return x[0];
  }

  /// Of 2 * kCount sums, lanes kCount apart keep one half each, with what the other lane has of it.
  template <int kCount>
  __device__ __forceinline__ void share_out(float (&x)[kStates * kPair]) const {
    const bool is_upper = (lane & kCount) != 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float kept = is_upper ? x[i + kCount] : x[i], given = is_upper ? x[i] : x[i + kCount];
      x[i] = kept + __shfl_xor_sync(kWholeWarp, given, kCount);
    }
    if constexpr (kCount > 1) share_out<kCount / 2>(x);
  }

  /// The recurrence of one state of one channel.
  __device__ float step_by_step(int state, int c, int begin, int end) const {
    const generic::ChannelCoefficient<T, float> C(p.C, p.dim, shared.place.sequence.batch,
                                                  shared.place.channel + row + c);
    float adjoint = 0;
#pragma unroll 1
    for (int i = end - 1; i >= begin; --i) {
      float delta[1] = {widen(*shared.delta.at(row + c, i))};
      float gate[1] = {shared.z.origin ? widen(*shared.z.at(row + c, i)) : 0.f};
      float gradient[1] = {shared.dout.origin ? widen(*shared.dout.at(row + c, i)) : 0.f};
      prepare(delta, gate, gradient, c == 0 ? bias[0] : bias[1]);
      adjoint = exp2_approximate(delta[0] * rate) * fmaf(C(state, shared.place.sequence.time(i)), gradient[0], adjoint);
    }
    return adjoint;
  }

  const ScanGradParams& grad;
  const ScanParams& p;
  typename Tile::Shared& shared;
  const int warp, lane, row, first_state;
  const int channels;  // of the block, from this pair on
  bool is_odd;         // some state may grow
  unsigned largest_dy = 0, largest_C = 0;
  float rate, bias[kPair];
  float running[kPair], base[kPair];  // sums of delta' up to the next tile and up to this one
  float sums[kStates][kPair];
  Steps exponent, dy;
  Raw raw_delta, raw_z, raw_dout;
};

}  // namespace mamba::kernels::cuda
