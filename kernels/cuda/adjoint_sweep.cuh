// The inner loop of the backward: 8 steps of two neighbouring channels in one thread, state after state.
#pragma once

#include "cuda/backward_tile.cuh"

namespace mamba::kernels::cuda {

template <class Tile>
class AdjointSweep {
 protected:
  using Shared = typename Tile::Shared;
  static constexpr int K = Tile::kLaneSteps, kPair = Tile::kPair;
  using Steps = float[kPair][K];

  __device__ AdjointSweep(Shared& block_shared)
      : shared(block_shared),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % Tile::kLanes),
        row(static_cast<int>(threadIdx.x) / Tile::kLanes * kPair),
        sums(block_shared.lane_sums[warp], static_cast<int>(threadIdx.x) % kWarpSize) {}

  /// This pair's part of the row of a state; -1 is the spare row.
  __device__ __forceinline__ float* rate_of(int state) const { return shared.tail()[state + 1].rate + row; }
  __device__ __forceinline__ float* adjoint_of(int state) const { return shared.tail()[state + 1].adjoint + row; }
  __device__ __forceinline__ float* dA_of(int state) const { return shared.tail()[state + 1].dA + row; }

 public:
  /// Takes `states` states from `first_state` on through the tile.
  __device__ __forceinline__ void sweep(int buffer, int first_state, int states) {
    if (is_growing) {
      sweep_states<true>(buffer, first_state, states);
    } else {
      sweep_states<false>(buffer, first_state, states);
    }
  }

 private:
  /// What goes on from state to state.
  struct Cursor {
    float* rates;  // this pair's rate, of which the adjoint and dA are a fixed way off
    const float *entry, *B;
    float* sums;
    float rate[kPair], whole[kPair], dA[kPair];  // dA: of the state before, like the sums over channels
    Steps a;  // the decays: found by accumulate(), whose arithmetic fills the time that exponentials take
  };
  static constexpr int kRow = 3 * Tile::kChannels, kAdjoint = Tile::kChannels, kdA = 2 * Tile::kChannels;
  static_assert(sizeof(typename Tile::StateRow) == kRow * sizeof(float));

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
  __device__ __forceinline__ void sweep_states(int buffer, int first_state, int states) {
    Cursor at;
    at.rates = rate_of(first_state);
    at.entry = &shared.entry[buffer][0][row];
    at.B = &shared.coefficients.tile[buffer].B[0][Tile::Coefficients::column(lane * K)];
    at.sums = &shared.warp_sums[warp][0][0];
    at.dA[0] = at.dA[1] = 0;
    load_pair(at.rates, at.rate);
    find_decays(at);
    int i = 0;
    if constexpr (!growing) {
#pragma unroll 1
      for (; i + 2 <= states; i += 2) {
        take_state<growing>(at, 0);
        take_state<growing>(at, 1);
      }
    }
#pragma unroll 1
    for (; i < states; ++i) take_state<growing>(at, i & 1);
    __syncwarp();
    sums.begin_get((states & 1) ^ 1);
    add_dA(at.rates - kRow + kdA, at.dA);
    sums.end_get(at.sums);
  }

  /// `parity`: of the state, counted from the stage's first.
  template <bool growing>
  __device__ __forceinline__ void take_state(Cursor& at, int parity) {
    constexpr int kToC = Tile::kStates * Tile::Coefficients::kPitch;
    float B[K], C[K], entry[kPair], carry[kPair];
    load_row(at.B + kToC, C);
    load_row(at.B, B);
    load_pair(at.entry, entry);
    load_pair(at.rates + kAdjoint, carry);
    __syncwarp();
    sums.begin_get(parity ^ 1);
    add_dA(at.rates - kRow + kdA, at.dA);

    Steps b, cdy;
    float before[kPair], after[kPair], dB[K], dC[K], h[kPair], r[kPair];
    const float rate[kPair] = {at.rate[0], at.rate[1]}, whole[kPair] = {at.whole[0], at.whole[1]};
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
    load_pair(at.rates + kRow, at.rate);
    if constexpr (!growing) run_both(at.a, b, cdy, h, r);
    if constexpr (growing) {
      chain_both(at.a, b, cdy, entry, carry, before, after, h, r);
    } else {
      scan_both(whole, entry, carry, before, after, h, r);
    }
    if (lane == 0) *reinterpret_cast<float2*>(at.rates + kAdjoint) = make_float2(r[0], r[1]);
    sums.end_get(at.sums);
    accumulate(at, b, cdy, B, C, rate, before, after, dB, dC);
    sums.put(parity, dB, dC);
    at.rates += kRow;
    at.entry += Tile::kChannels;
    at.B += Tile::Coefficients::kPitch;
    at.sums += Tile::Sums::kFloats;
  }

  __device__ __forceinline__ void add_dA(float* row, const float (&dA)[kPair]) const {
    const float sum = sum_lanes_of_two<Tile::kLanes>(dA[0], dA[1], lane & 1);
    if (lane < 2) row[lane] += sum;
  }

  __device__ __forceinline__ void find_decays(Cursor& at) const {
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
#pragma unroll
      for (int k = 0; k < K; ++k) at.a[c][k] = exp2_approximate(step[c][k] * at.rate[c]);
      at.whole[c] = exp2_approximate(total[c] * at.rate[c]);
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

  /// What the lane's steps make of a state and an adjoint of 0.
  static __device__ __forceinline__ void run_both(const Steps& a, const Steps& b, const Steps& cdy, float (&h)[kPair],
                                                  float (&r)[kPair]) {
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
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
    for (int c = 0; c < kPair; ++c) r[c] *= a[c][0];
  }

  /// The states before this lane's steps and the adjoints after them, from what run_both() left in h and r; these
  /// become the states after the steps and the adjoints before them.
  __device__ __forceinline__ void scan_both(const float (&whole)[kPair], const float (&entry)[kPair],
                                            const float (&carry)[kPair], float (&before)[kPair], float (&after)[kPair],
                                            float (&h)[kPair], float (&r)[kPair]) const {
    constexpr int kLanes = Tile::kLanes;
    const bool is_first = lane == 0, is_last = lane == kLanes - 1;
    float decay[kPair], adjoint_decay[kPair];
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      if (is_first) h[c] = fmaf(whole[c], entry[c], h[c]);
      if (is_last) r[c] = fmaf(whole[c], carry[c], r[c]);
      decay[c] = is_first ? 0.f : whole[c];
      adjoint_decay[c] = is_last ? 0.f : whole[c];
    }
    scan_lanes<kLanes, false>(h, decay);
    scan_lanes<kLanes, true>(r, adjoint_decay);
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      before[c] = from_earlier<kLanes, false>(h[c], 1);
      after[c] = from_earlier<kLanes, true>(r[c], 1);
      if (is_first) before[c] = entry[c];
      if (is_last) after[c] = carry[c];
    }
  }

  /// The same, lane after lane, where states may grow.
  __device__ __forceinline__ void chain_both(const Steps& a, const Steps& b, const Steps& cdy,
                                             const float (&entry)[kPair], const float (&carry)[kPair],
                                             float (&before)[kPair], float (&after)[kPair], float (&h)[kPair],
                                             float (&r)[kPair]) const {
    constexpr int kLanes = Tile::kLanes;
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      before[c] = chain_lanes<kLanes>(entry[c], lane, h[c], [&](float x) { return run(a[c], b[c], x); });
      after[c] = chain_lanes<kLanes, true>(carry[c], kLanes - 1 - lane, r[c],
                                           [&](float x) { return run_adjoint(a[c], cdy[c], x); });
    }
  }

  /// Runs both recurrences again, now with what came before and after, and adds up all that depends on them.
  /// Leaves the decays of the next state, whose rates are known already.
  __device__ __forceinline__ void accumulate(Cursor& at, const Steps& b, const Steps& cdy, const float (&B)[K],
                                             const float (&C)[K], const float (&rate)[kPair],
                                             const float (&before)[kPair], const float (&after)[kPair], float (&dB)[K],
                                             float (&dC)[K]) {
    float decayed[kPair][K];  // a_t h_{t-1}
#pragma unroll
    for (int c = 0; c < kPair; ++c) at.dA[c] = 0;
    float h[kPair] = {before[0], before[1]}, g[kPair] = {cdy[0][K - 1] + after[0], cdy[1][K - 1] + after[1]};
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        decayed[c][k] = at.a[c][k] * h[c];
        h[c] = fmaf(at.a[c][k], h[c], b[c][k]);
        y[c][k] = fmaf(C[k], h[c], y[c][k]);
        dC[k] = c == 0 ? dy[c][k] * h[c] : fmaf(dy[c][k], h[c], dC[k]);
      }
    }
#pragma unroll
    for (int k = K - 1; k >= 0; --k) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        const float q = g[c] * decayed[c][k];
        dexponent[c][k] = fmaf(rate[c], q, dexponent[c][k]);
        at.dA[c] = fmaf(step[c][k], q, at.dA[c]);
        dinput[c][k] = fmaf(g[c], B[k], dinput[c][k]);
        dB[k] = c == 0 ? g[c] * input[c][k] : fmaf(g[c], input[c][k], dB[k]);
        if (k > 0) g[c] = fmaf(at.a[c][k], g[c], cdy[c][k - 1]);
        at.a[c][k] = exp2_approximate(step[c][k] * at.rate[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kPair; ++c) at.whole[c] = exp2_approximate(total[c] * at.rate[c]);
  }

 protected:
  Shared& shared;
  const int warp, lane, row;  // row: the pair's first channel within the block
  LaneSums<Tile::kLanes> sums;
  bool is_growing;
  float total[kPair];          // of delta', over the lane's steps
  Steps step, input, dy;       // delta', delta' u, the gradient of y
  Steps y, dinput, dexponent;  // y and the gradients of delta' u and of log2 a, summed over the states
};

}  // namespace mamba::kernels::cuda
