// What one thread does for the carries of chunks: see chunk_carry.cuh.
#pragma once

#include "cuda/coefficients.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/pair_access.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class T_, PairAccess access, bool is_adjoint>
struct CarryTile {
  using T = T_;
  static constexpr PairAccess kAccess = access;
  static constexpr bool kIsAdjoint = is_adjoint;
  static constexpr int kLaneSteps = 8, kPair = 2, kWarps = CarryShape::kWarps, kStates = CarryShape::kStates;
  static constexpr int kThreads = kWarps * kWarpSize, kSteps = kWarpSize * kLaneSteps;
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Source = CoefficientSource<Coefficients>;
  using Plane = PairPlane<T, access>;

  struct Shared {
    typename Coefficients::Rows factors[2];  // B, or C for the adjoint
    typename Source::UnderWay under_way;
    Source source;
    Place place;
    Plane delta, value, z;  // value: u, or dout
    alignas(8) float rates[kWarps][kStates][kPair];
    unsigned largest_factor[kWarps];  // of each warp's share: see magnitude()
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
class ChunkCarry {
  using T = typename Tile::T;
  using Plane = typename Tile::Plane;
  using Raw = PairSteps<T, Tile::kAccess>;
  static constexpr bool kIsAdjoint = Tile::kIsAdjoint;
  static constexpr int kAtOnce = 2;  // states that are left out together
  static constexpr int K = Tile::kLaneSteps, kPair = Tile::kPair, kStates = Tile::kStates;
  using Steps = float[kPair][K];

 public:
  __device__ ChunkCarry(const ScanParams& params, typename Tile::Shared& block_shared, int block_first_state)
      : p(params),
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
    __syncwarp();
  }

  __device__ __forceinline__ void fetch(int first_step) {
    const int begin = first_step + lane * K, left = shared.place.steps - begin;
    if (channels >= kPair && left >= K) {
      fetch_as<true>(begin, left);
    } else {
      fetch_as<false>(begin, left);
    }
  }

  /// What the steps of the tile that fetch() loaded bring, and the sums of delta' that it decays by.
  __device__ __forceinline__ void begin_tile(int first_step) {
    const int left = shared.place.steps - (first_step + lane * K);
    Steps z;
    raw_delta.widen_into(exponent);
    raw_value.widen_into(value);
    raw_z.widen_into(z);
    for (Raw* raw : {&raw_delta, &raw_z, &raw_value}) raw->clear();  // else they would be kept until the next fetch()
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      prepare(exponent[c], z[c], value[c], bias[c]);
      float total = 0;
#pragma unroll
      for (int i = 0; i < K; ++i) {
        const int k = kIsAdjoint ? i : K - 1 - i;
        const float step = k < left ? exponent[c][k] : 0.f;
        least_step = fminf(least_step, step);
        if (!kIsAdjoint) exponent[c][k] = total;
        total += step;
        if (kIsAdjoint) exponent[c][k] = total;
        const unsigned size = magnitude(value[c][k]);
        largest_value = largest_value > size ? largest_value : size;
      }
      float until = total;
#pragma unroll
      for (int by = 1; by < kWarpSize; by *= 2) {
        const float earlier = from_earlier<kWarpSize, !kIsAdjoint>(until, by);
        until += (kIsAdjoint ? lane >= by : lane + by < kWarpSize) ? earlier : 0.f;
      }
      const float before = running[c] + (until - total);
#pragma unroll
      for (int k = 0; k < K; ++k) exponent[c][k] += before;
      base[c] = running[c];
      running[c] += __shfl_sync(kWholeWarp, until, kIsAdjoint ? kWarpSize - 1 : 0);
    }
  }

  __device__ __forceinline__ void sweep(const typename Tile::Coefficients::Rows& factors, int states) {
    constexpr float kGone = -127;  // powers of 2 below the normal range are 0
    const float* from = &factors[0][Tile::Coefficients::column(lane * K)];
#pragma unroll
    for (int n = 0; n < kStates; n += kAtOnce) {
      if (n >= states) break;
      float2 rates[kAtOnce];
      bool are_gone = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        rates[i] = *reinterpret_cast<const float2*>(shared.rates[warp][n + i]);
        are_gone = are_gone && rates[i].x * base[0] < kGone && rates[i].y * base[1] < kGone;
      }
      if (are_gone) continue;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float factor[K];
#pragma unroll
        for (int k = 0; k < K; k += 4) {
          const float4 four = load_float4(from + (n + i) * Tile::Coefficients::kPitch + k);
          factor[k] = four.x, factor[k + 1] = four.y, factor[k + 2] = four.z, factor[k + 3] = four.w;
        }
#pragma unroll
        for (int k = 0; k < K; ++k) {
          sums[n + i][0] = fmaf(exp2_approximate(rates[i].x * exponent[0][k]), factor[k] * value[0][k], sums[n + i][0]);
          sums[n + i][1] = fmaf(exp2_approximate(rates[i].y * exponent[1][k]), factor[k] * value[1][k], sums[n + i][1]);
        }
      }
    }
  }

  /// The largest of this thread's share of a tile of factors.
  __device__ __forceinline__ void inspect(const typename Tile::Coefficients::Rows& factors, int states) {
    constexpr int kPerRow = Tile::kSteps / 4, kRows = Tile::kThreads / kPerRow;
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int n = 0; n < kStates; n += kRows) {
      const int state = n + thread / kPerRow;
      if (state >= states) break;
      const float4 four = load_float4(&factors[state][Tile::Coefficients::column(thread % kPerRow * 4)]);
      for (const float x : {four.x, four.y, four.z, four.w}) {
        largest_factor = largest_factor > magnitude(x) ? largest_factor : magnitude(x);
      }
    }
  }

  __device__ __forceinline__ void store(const CarryTask& task, int64_t chunk_row) {
    shared.largest_factor[warp] = largest_of_warp(largest_factor);
    __syncthreads();
    unsigned largest = 0;
#pragma unroll
    for (const unsigned x : shared.largest_factor) largest = largest > x ? largest : x;
    const unsigned product = magnitude(bit_cast<float>(largest) * bit_cast<float>(largest_of_warp(largest_value)));
    constexpr unsigned kInfinity = 0x7f800000u;
    const bool is_finite =
        product < kInfinity && magnitude(running[0]) < kInfinity && magnitude(running[1]) < kInfinity;
    float sum = sum_over_lanes();
    const int state = first_state + lane / kPair, c = lane % kPair;
    const bool exists = c < channels && state < p.dstate;
    if (__any_sync(kWholeWarp, rate > 0 || least_step < 0 || !is_finite)) sum = exists ? step_by_step(state, c) : 0.f;
    if (!exists) return;
    const int64_t channel = shared.place.channel + row + c;
    task.states[(chunk_row * p.dstate + state) * p.dim + channel] = sum;
    if (state == 0) task.exponents[chunk_row * p.dim + channel] = c == 0 ? running[0] : running[1];
  }

 private:
  template <bool is_whole>
  __device__ __forceinline__ void fetch_as(int begin, int left) {
    fetch_one<is_whole>(raw_delta, shared.delta, begin, left);
    fetch_one<is_whole>(raw_value, shared.value, begin, left);
    if (kIsAdjoint) fetch_one<is_whole>(raw_z, shared.z, begin, left);
  }
  template <bool is_whole>
  __device__ __forceinline__ void fetch_one(Raw& raw, const Plane& shared_plane, int begin, int left) {
    const Plane plane = shared_plane;
    if (!plane.origin) return raw.clear();
    const T* from = plane.at(row, begin);
    raw.template load<is_whole>(plane, from, channels, left);
    if (Plane::kAlongTime && is_whole) {
      constexpr int kFurther = kIsAdjoint == Plane::kIsReversed ? -Tile::kSteps : Tile::kSteps;
      const int next = begin + (kIsAdjoint ? Tile::kSteps : -Tile::kSteps);
      if (next >= 0 && next < shared.place.steps) {
        prefetch_to_l2(from + kFurther);
        prefetch_to_l2(from + plane.channel_stride + kFurther);
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void prepare(float (&delta)[kCount], const float (&z)[kCount], float (&x)[kCount],
                                          float channel_bias) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) delta[k] += channel_bias;
    if (p.delta_softplus) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) delta[k] = fast_softplus(delta[k]);
    }
    if (!kIsAdjoint) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) x[k] *= delta[k];
    } else if (p.z.data) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) x[k] *= z[k] * fast_sigmoid(z[k]);
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
  __device__ float step_by_step(int state, int c) const {
    const generic::ChannelCoefficient<T, float> factor(kIsAdjoint ? p.C : p.B, p.dim, shared.place.sequence.batch,
                                                       shared.place.channel + row + c);
    const int steps = shared.place.steps;
    float h = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int step = kIsAdjoint ? steps - 1 - i : i;
      float delta[1] = {widen(*shared.delta.at(row + c, step))};
      float gate[1] = {kIsAdjoint && shared.z.origin ? widen(*shared.z.at(row + c, step)) : 0.f};
      float x[1] = {shared.value.origin ? widen(*shared.value.at(row + c, step)) : 0.f};
      prepare(delta, gate, x, c == 0 ? bias[0] : bias[1]);
      const float decay = exp2_approximate(delta[0] * rate), f = factor(state, shared.place.sequence.time(step));
      h = kIsAdjoint ? decay * fmaf(f, x[0], h) : fmaf(decay, h, f * x[0]);
    }
    return h;
  }

  const ScanParams& p;
  typename Tile::Shared& shared;
  const int warp, lane, row, first_state;
  const int channels;  // of the block, from this pair on
  float least_step = 0;
  unsigned largest_value = 0, largest_factor = 0;
  float rate, bias[kPair];
  float running[kPair], base[kPair];  // sums of delta' up to the next tile and up to this one
  float sums[kStates][kPair];
  Steps exponent, value;
  Raw raw_delta, raw_z, raw_value;
};

}  // namespace mamba::kernels::cuda
