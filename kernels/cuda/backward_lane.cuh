// What one thread does in the backward: 8 steps of two neighbouring channels, state after state.
#pragma once

#include "cuda/backward_sums.cuh"
#include "cuda/coefficients.cuh"
#include "cuda/lane_scan.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class T_, class Shape>
struct BackwardTile : Shape {
  using T = T_;
  using Shape::kLanes, Shape::kStates, Shape::kWarps;
  static constexpr int kLaneSteps = 8, kPair = 2;
  static constexpr int kThreads = kWarps * kWarpSize, kWarpChannels = kPair * kWarpSize / kLanes;
  static constexpr int kChannels = kWarps * kWarpChannels, kSteps = kLanes * kLaneSteps;
  static_assert(kChannels == Shape::kBlockChannels && kSteps % kCheckpointSpacing == 0);
  using Coefficients = CoefficientTile<T, kStates, kSteps, true>;
  using Sums = LaneSums<kLanes>;

  /// An activation or its gradient.
  struct Stream {
    Plane<T> plane;
    QuadAccess access;  // along time

    __device__ void set(const Activation& x, const Place& place) {
      plane = Plane<T>(x, place);
      access = QuadAccess(plane.origin, plane.step_stride, plane.channel_stride, place.steps);
    }
    /// Of a pair of channels and 8 steps.
    template <bool are_vectors>
    __device__ __forceinline__ void load(Quad<T> (&quads)[kPair][2], int channel, int step, int channels,
                                         int left) const {
      const T* from = plane.at(channel, step);
#pragma unroll
      for (int c = 0; c < kPair; ++c, from += plane.channel_stride) {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const int quad_left = c < channels ? left - 4 * q : 0;
          if constexpr (are_vectors) {
            quads[c][q] = quad_left > 0 ? Quad<T>::load(from + 4 * q) : Quad<T>::zero();
          } else {
            quads[c][q] = access.load(from + 4 * q * access.stride, quad_left).turned(access.is_turned);
          }
        }
      }
    }
    template <bool are_vectors>
    __device__ __forceinline__ void store(int channel, int step, const float (&x)[4], int left) const {
      T* to = plane.at(channel, step);
      if constexpr (are_vectors) {
        if (left > 0) *reinterpret_cast<typename Quad<T>::Word*>(to) = Quad<T>::narrowed(x).word;
      } else {
        access.store(to, Quad<T>::narrowed(x), left);
      }
    }
    /// Of what load() will read for a tile that is `steps` steps away.
    __device__ __forceinline__ void prefetch(int channel, int step, int channels) const {
      if (!plane.origin) return;
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        if (c < channels) prefetch_to_l2(plane.at(channel + c, step));
      }
    }
  };

  struct Shared {
    CoefficientStage<Coefficients> coefficients;
    Place place;
    Stream u, delta, z, dout, du, ddelta, dz;
    bool are_vectors;  // all quads of all streams, in the order of the scan
    // Of the block's channels, and for each thread its sums over the tiles so far.
    float bias[kChannels], skip[kChannels];
    GrowthRate growth[kChannels];
    float dD[kPair][kThreads], ddelta_bias[kPair][kThreads];
    CoefficientSums dB, dC;
    alignas(16) float entry[2][kStates][kChannels];  // states at the beginning of the tile
    typename Sums::Shared lane_sums[kWarps];
    // By state of the stage, counted from 1: slot 0 takes what the delay of LaneSums leaves over.
    alignas(16) typename Sums::Sums warp_sums[kWarps][kStates + 1];
    // What a thread needs again at the end of a tile: by channel and quad of steps.
    float4 u_kept[kPair][2][kThreads], slope_kept[kPair][2][kThreads], gate_kept[kPair][2][kThreads];

    /// Behind the rest, by state and channel: rates; a spare row and dA; the adjoint between two tiles, twice.
    __device__ float* tail() { return reinterpret_cast<float*>(this + 1); }

    /// By one thread, before a barrier.
    __device__ void set_place(const ScanGradParams& grad, const Place& new_place) {
      place = new_place;
      u.set(grad.scan.u, place);
      delta.set(grad.scan.delta, place);
      z.set(grad.scan.z, place);
      dout.set(grad.dout, place);
      du.set(grad.du, place);
      ddelta.set(grad.ddelta, place);
      dz.set(grad.dz, place);
      are_vectors = true;
      for (const Stream* x : {&u, &delta, &z, &dout, &du, &ddelta, &dz}) {
        are_vectors = are_vectors && (!x->plane.origin || (x->access.is_vector && !x->access.is_turned));
      }
    }
  };
  static size_t shared_bytes(int64_t dstate) {
    return sizeof(Shared) + static_cast<size_t>((4 * dstate + 1) * kChannels) * sizeof(float);
  }
};

template <class Tile>
class AdjointLane {
  using T = typename Tile::T;
  using Shared = typename Tile::Shared;
  static constexpr int K = Tile::kLaneSteps, kPair = Tile::kPair;
  using Steps = float[kPair][K];

 public:
  __device__ AdjointLane(const ScanGradParams& params, const Range& block_channels, Shared& block_shared)
      : grad(params),
        p(params.scan),
        shared(block_shared),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % Tile::kLanes),
        row(static_cast<int>(threadIdx.x) / Tile::kLanes * kPair),
        channel(block_channels.begin + row),
        channels(static_cast<int>(block_channels.end - block_channels.begin) - row),
        sums(block_shared.lane_sums[warp], static_cast<int>(threadIdx.x) % kWarpSize) {
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      GrowthRate growth;
      // The lanes of a channel share out its states.
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        const float rate =
            c < channels ? exponent_rate(static_cast<const float*>(p.A)[(channel + c) * p.dstate + n]) : 0.f;
        rates()[n * Tile::kChannels + c] = rate;
        dA_sums()[n * Tile::kChannels + c] = 0;
        growth.include(rate);
      }
#pragma unroll
      for (int by = 1; by < Tile::kLanes; by *= 2) growth.include_lane(by);
      if (lane == 0) {
        shared.growth[row + c] = growth;
        shared.bias[row + c] =
            p.delta_bias && c < channels ? static_cast<const float*>(p.delta_bias)[channel + c] : 0.f;
        shared.skip[row + c] = p.D && c < channels ? static_cast<const float*>(p.D)[channel + c] : 0.f;
      }
      shared.dD[c][threadIdx.x] = shared.ddelta_bias[c][threadIdx.x] = 0;
    }
  }

  /// The adjoint of the state after the last step.
  __device__ __forceinline__ void begin_sequence() {
    const float* dlast = static_cast<const float*>(grad.dlast_state) + state_row();
    for (int c = 0; c < kPair; ++c) {
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        adjoint(0)[n * Tile::kChannels + c] = grad.dlast_state && c < channels ? dlast[c * p.dstate + n] : 0.f;
      }
    }
  }
  __device__ __forceinline__ void end_sequence(int parity) {
    if (!grad.dinitial_state) return;
    float* dinitial = static_cast<float*>(grad.dinitial_state) + state_row();
    for (int c = 0; c < kPair && c < channels; ++c) {
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        dinitial[c * p.dstate + n] = adjoint(parity)[n * Tile::kChannels + c];
      }
    }
  }

  /// Reads the tile's activations. Steps beyond the last one, for which u and dout read as 0, keep the states and add
  /// nothing.
  __device__ __forceinline__ void begin_tile(int first_step) {
    const int begin = first_step + lane * K, left = shared.place.steps - begin;
    Quad<T> raw_delta[kPair][2], raw_u[kPair][2], raw_z[kPair][2], raw_dout[kPair][2];
    auto load = [&](auto are_vectors) {
      constexpr bool kAreVectors = decltype(are_vectors)::value;
      shared.delta.template load<kAreVectors>(raw_delta, row, begin, channels, left);
      shared.u.template load<kAreVectors>(raw_u, row, begin, channels, left);
      shared.z.template load<kAreVectors>(raw_z, row, begin, p.z.data ? channels : 0, left);
      shared.dout.template load<kAreVectors>(raw_dout, row, begin, grad.dout.data ? channels : 0, left);
    };
    if (shared.are_vectors) {
      load(std::true_type());
      if (first_step > 0) {
        const int step = begin - Tile::kSteps;
        shared.delta.prefetch(row, step, channels);
        shared.u.prefetch(row, step, channels);
        shared.z.prefetch(row, step, channels);
        shared.dout.prefetch(row, step, channels);
      }
    } else {
      load(std::false_type());
    }
    float growing = 0;
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      const float bias = shared.bias[row + c];
      total[c] = 0;
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        float delta[4], u[4], z[4], dout[4], slope[4], gate[4];
        raw_delta[c][q].widen_into(delta);
        raw_u[c][q].widen_into(u);
        raw_z[c][q].widen_into(z);
        raw_dout[c][q].widen_into(dout);
        prepare(delta, z, dout, bias, slope, gate);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int k = 4 * q + i;
          step[c][k] = k < left ? delta[i] : 0.f;
          input[c][k] = step[c][k] * u[i];
          dy[c][k] = dout[i];
          keep(input[c][k]);
          total[c] += step[c][k];
          y[c][k] = dinput[c][k] = dexponent[c][k] = 0;
        }
        const int thread = static_cast<int>(threadIdx.x);
        shared.u_kept[c][q][thread] = make_float4(u[0], u[1], u[2], u[3]);
        shared.slope_kept[c][q][thread] = make_float4(slope[0], slope[1], slope[2], slope[3]);
        shared.gate_kept[c][q][thread] = make_float4(gate[0], gate[1], gate[2], gate[3]);
      }
      growing = fmaxf(growing, growth_of<Tile::kLanes>(shared.growth[row + c], step[c]));
    }
    is_growing = __any_sync(kWholeWarp, growing > kSafeGrowth);
  }

  /// Takes `states` states from `first_state` on through the tile. `parity` says which adjoints are the old ones.
  __device__ __forceinline__ void sweep(int buffer, int first_state, int states, int parity) {
    if (is_growing) {
      sweep_states<true>(buffer, first_state, states, parity);
    } else {
      sweep_states<false>(buffer, first_state, states, parity);
    }
  }

  /// Writes the tile's gradients.
  __device__ __forceinline__ void end_tile(int first_step) {
    if (shared.are_vectors) {
      write_tile<true>(first_step);
    } else {
      write_tile<false>(first_step);
    }
  }

  /// Sums over this block's sequences.
  __device__ __forceinline__ void store_channel_sums(const BackwardTask& task, int64_t part) {
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      const float bias_sum = sum_lanes<Tile::kLanes>(shared.ddelta_bias[c][threadIdx.x]);
      const float D_sum = sum_lanes<Tile::kLanes>(shared.dD[c][threadIdx.x]);
      if (c >= channels) continue;
      const int64_t at = part * p.dim + channel + c;
      if (lane == 0 && task.ddelta_bias_sums) task.ddelta_bias_sums[at] = bias_sum;
      if (lane == 0 && task.dD_sums) task.dD_sums[at] = D_sum;
      for (int n = lane; n < p.dstate && task.dA_sums; n += Tile::kLanes) {
        task.dA_sums[at * p.dstate + n] = dA_sums()[n * Tile::kChannels + c];
      }
    }
  }

 private:
  __device__ __forceinline__ float* rates() const {
    return shared.tail() + row;
  }
  __device__ __forceinline__ int dstate() const {
    return static_cast<int>(p.dstate);
  }
  __device__ __forceinline__ float* dA_sums() const {
    return rates() + (dstate() + 1) * Tile::kChannels;
  }
  __device__ __forceinline__ float* adjoint(int parity) const {
    return dA_sums() + (1 + parity) * dstate() * Tile::kChannels;
  }
  __device__ int64_t state_row() const {
    return (shared.place.sequence_index * p.dim + channel) * p.dstate;
  }

  /// The steps' delta', with its slope, and the gradients of y and, apart from a factor y, of z.
  __device__ __forceinline__ void prepare(float (&delta)[4], const float (&z)[4], float (&dout)[4], float bias,
                                          float (&slope)[4], float (&gate)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      delta[i] += bias;
      slope[i] = 1;
      gate[i] = 0;
    }
    if (p.delta_softplus) {
#pragma unroll
      for (int i = 0; i < 4; ++i) delta[i] = fast_softplus(delta[i], slope[i]);
    }
    if (p.z.data) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sigmoid = fast_sigmoid(z[i]), silu = z[i] * sigmoid;
        gate[i] = dout[i] * fmaf(silu, 1.f - sigmoid, sigmoid);
        dout[i] *= silu;
      }
    }
  }

  template <bool are_vectors>
  __device__ __forceinline__ void write_tile(int first_step) {
    const int begin = first_step + lane * K, left = shared.place.steps - begin, thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      const float skip = shared.skip[row + c];
      float dD = 0, ddelta_bias = 0;
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        float u[4], slope[4], gate[4], du[4], ddelta[4], dz[4];
        unpack(shared.u_kept[c][q][thread], u);
        unpack(shared.slope_kept[c][q][thread], slope);
        unpack(shared.gate_kept[c][q][thread], gate);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int k = 4 * q + i;
          du[i] = fmaf(step[c][k], dinput[c][k], skip * dy[c][k]);
          ddelta[i] = fmaf(u[i], dinput[c][k], kLn2 * dexponent[c][k]) * slope[i];
          dz[i] = gate[i] * fmaf(skip, u[i], y[c][k]);
          if (k < left) {
            ddelta_bias += ddelta[i];
            dD = fmaf(dy[c][k], u[i], dD);
          }
        }
        const int quad_left = c < channels ? left - 4 * q : 0;
        if (grad.du.data) shared.du.template store<are_vectors>(row + c, begin + 4 * q, du, quad_left);
        if (grad.ddelta.data) shared.ddelta.template store<are_vectors>(row + c, begin + 4 * q, ddelta, quad_left);
        if (grad.dz.data) shared.dz.template store<are_vectors>(row + c, begin + 4 * q, dz, quad_left);
      }
      shared.dD[c][thread] += dD;
      shared.ddelta_bias[c][thread] += ddelta_bias;
    }
  }

  static __device__ __forceinline__ void unpack(const float4& from, float (&to)[4]) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
  }
  static __device__ __forceinline__ void load_row(const float* from, float (&x)[K]) {
#pragma unroll
    for (int k = 0; k < K; k += 4) {
      const float4 four = load_float4(from + k);
      x[k] = four.x, x[k + 1] = four.y, x[k + 2] = four.z, x[k + 3] = four.w;
    }
  }
  static __device__ __forceinline__ void load_pair(const float* from, float (&x)[kPair]) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    x[0] = two.x, x[1] = two.y;
  }

  template <bool growing>
  __device__ __forceinline__ void sweep_states(int buffer, int first_state, int states, int parity) {
    constexpr int kRow = Tile::kChannels, kPitch = Tile::Coefficients::kPitch;
    const float* rate_row = rates() + first_state * kRow;
    float* dA_row = dA_sums() + (first_state - 1) * kRow + (lane & 1);
    const float* adjoint_row = adjoint(parity) + first_state * kRow;
    float* next_adjoint_row = adjoint(parity ^ 1) + first_state * kRow;
    const float* entry_row = &shared.entry[buffer][0][row];
    const float* B_row = &shared.coefficients.tile[buffer].B[0][Tile::Coefficients::column(lane * K)];
    float* sums_row = &shared.warp_sums[warp][0][0];
    float dA[kPair] = {0, 0};  // of the state before, like the sums over channels
    int delayed = 1;
#pragma unroll 1
    for (int i = 0; i < states; ++i) {
      float B[K], C[K], rate[kPair], entry[kPair], carry[kPair];
      load_pair(rate_row, rate);
      load_row(B_row + Tile::kStates * kPitch, C);
      load_row(B_row, B);
      load_pair(entry_row, entry);
      load_pair(adjoint_row, carry);
      __syncwarp();
      sums.begin_get(delayed);
      add_dA(dA_row, dA);

      Steps a, b, cdy;
      float before[kPair], after[kPair];
      decays(rate, a);
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
          b[c][k] = input[c][k] * B[k];
          cdy[c][k] = dy[c][k] * C[k];
          keep(b[c][k]);
          keep(cdy[c][k]);
        }
      }
      scan_both<growing>(a, b, cdy, rate, entry, carry, before, after, next_adjoint_row);
      sums.end_get(sums_row);

      float dB[K], dC[K];
      accumulate(a, b, cdy, B, C, rate, before, after, dB, dC, dA);
      delayed ^= 1;
      sums.put(delayed, dB, dC);
      B_row += kPitch;
      rate_row += kRow;
      dA_row += kRow;
      entry_row += kRow;
      adjoint_row += kRow;
      next_adjoint_row += kRow;
      sums_row += Tile::Sums::kFloats;
    }
    __syncwarp();
    sums.begin_get(delayed);
    add_dA(dA_row, dA);
    sums.end_get(sums_row);
  }

  __device__ __forceinline__ void add_dA(float* row, const float (&dA)[kPair]) const {
    const float sum = sum_lanes_of_two<Tile::kLanes>(dA[0], dA[1], lane & 1);
    if (lane < 2) *row += sum;
  }

  __device__ __forceinline__ void decays(const float (&rate)[kPair], Steps& a) const {
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
#pragma unroll
      for (int k = 0; k < K; ++k) a[c][k] = exp2_approximate(step[c][k] * rate[c]);
    }
  }

  static __device__ __forceinline__ float run(const float (&a)[K], const float (&b)[K], float h) {
#pragma unroll
    for (int k = 0; k < K; ++k) h = fmaf(a[k], h, b[k]);
    return h;
  }
  static __device__ __forceinline__ float run_adjoint(const float (&a)[K], const float (&cdy)[K], float r) {
#pragma unroll
    for (int k = K - 1; k >= 0; --k) r = a[k] * (cdy[k] + r);
    return r;
  }

  /// The states before this lane's steps and the adjoints after them; the first lane leaves the tile's for the next
  /// one.
  template <bool growing>
  __device__ __forceinline__ void scan_both(const Steps& a, const Steps& b, const Steps& cdy,
                                            const float (&rate)[kPair], const float (&entry)[kPair],
                                            const float (&carry)[kPair], float (&before)[kPair], float (&after)[kPair],
                                            float* next_adjoint) const {
    constexpr int kLanes = Tile::kLanes;
    const bool is_first = lane == 0, is_last = lane == kLanes - 1;
    float h[kPair], r[kPair];
    if constexpr (growing) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        before[c] = chain_lanes<kLanes>(entry[c], lane, h[c], [&](float x) { return run(a[c], b[c], x); });
        after[c] = chain_lanes<kLanes, true>(carry[c], kLanes - 1 - lane, r[c],
                                             [&](float x) { return run_adjoint(a[c], cdy[c], x); });
      }
    } else {
      float whole[kPair], whole_adjoint[kPair];
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        whole[c] = exp2_approximate(total[c] * rate[c]);
        h[c] = b[c][0];
        r[c] = cdy[c][K - 1];
      }
#pragma unroll
      for (int k = 1; k < K; ++k) {
#pragma unroll
        for (int c = 0; c < kPair; ++c) {
          h[c] = fmaf(a[c][k], h[c], b[c][k]);
          r[c] = fmaf(a[c][K - k], r[c], cdy[c][K - 1 - k]);
        }
      }
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        r[c] *= a[c][0];
        if (is_first) h[c] = fmaf(whole[c], entry[c], h[c]);
        if (is_last) r[c] = fmaf(whole[c], carry[c], r[c]);
        whole_adjoint[c] = is_last ? 0.f : whole[c];
        whole[c] = is_first ? 0.f : whole[c];
      }
      scan_lanes<kLanes, false>(h, whole);
      scan_lanes<kLanes, true>(r, whole_adjoint);
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        before[c] = from_earlier<kLanes, false>(h[c], 1);
        after[c] = from_earlier<kLanes, true>(r[c], 1);
        if (is_first) before[c] = entry[c];
        if (is_last) after[c] = carry[c];
      }
    }
    if (is_first) *reinterpret_cast<float2*>(next_adjoint) = make_float2(r[0], r[1]);
  }

  /// Runs both recurrences again, now with what came before and after, and adds up all that depends on them.
  __device__ __forceinline__ void accumulate(const Steps& a, const Steps& b, const Steps& cdy, const float (&B)[K],
                                             const float (&C)[K], const float (&rate)[kPair],
                                             const float (&before)[kPair], const float (&after)[kPair], float (&dB)[K],
                                             float (&dC)[K], float (&dA)[kPair]) {
    float h[kPair][K + 1], r[kPair];
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      h[c][0] = before[c];
      r[c] = after[c];
      dA[c] = 0;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        h[c][k + 1] = fmaf(a[c][k], h[c][k], b[c][k]);
        y[c][k] = fmaf(C[k], h[c][k + 1], y[c][k]);
        dC[k] = c == 0 ? dy[c][k] * h[c][k + 1] : fmaf(dy[c][k], h[c][k + 1], dC[k]);
      }
    }
#pragma unroll
    for (int k = K - 1; k >= 0; --k) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        const float g = cdy[c][k] + r[c];
        r[c] = a[c][k] * g;
        const float q = r[c] * h[c][k];
        dexponent[c][k] = fmaf(rate[c], q, dexponent[c][k]);
        dA[c] = fmaf(step[c][k], q, dA[c]);
        dinput[c][k] = fmaf(g, B[k], dinput[c][k]);
        dB[k] = c == 0 ? g * input[c][k] : fmaf(g, input[c][k], dB[k]);
      }
    }
  }

  const ScanGradParams& grad;
  const ScanParams& p;
  Shared& shared;
  const int warp, lane, row;  // row: the pair's first channel within the block
  const int64_t channel;
  const int channels;  // of the block, from this pair on
  LaneSums<Tile::kLanes> sums;
  bool is_growing;
  float total[kPair];
  Steps step, input, dy;       // delta', delta' u, the gradient of y
  Steps y, dinput, dexponent;  // y and the gradients of delta' u and of log2 a, summed over the states
};

}  // namespace mamba::kernels::cuda
