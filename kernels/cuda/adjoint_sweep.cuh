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

  __device__ AdjointSweep(const ScanParams& p, Shared& block_shared)
      : shared(block_shared),
        dstate(static_cast<int>(p.dstate)),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % Tile::kLanes),
        row(static_cast<int>(threadIdx.x) / Tile::kLanes * kPair),
        sums(block_shared.lane_sums[warp], static_cast<int>(threadIdx.x) % kWarpSize) {}

  /// This pair's part of the row of a state.
  __device__ __forceinline__ float* rate_of(int state) const { return shared.tail()[state].rate + row; }
  __device__ __forceinline__ float* adjoint_of(int state) const { return shared.tail()[state].adjoint + row; }
  __device__ __forceinline__ float* dA_of(int state) const { return shared.tail()[state].dA + row; }

 public:
  /// Takes `states` states from `first_state` on through the tile.
  __device__ __forceinline__ void sweep(int buffer, int first_state, int states) {
    if (warp_agrees(is_growing)) {
      sweep_states<true>(buffer, first_state, states);
    } else {
      sweep_states<false>(buffer, first_state, states);
    }
  }

  /// Adds up the shares of dA of `states` states, which the lanes of a pair share out, and starts them again.
  __device__ __forceinline__ void add_up_dA(int first_state, int states) const {
    typename Tile::Shares* shares = shared.dA_shares(dstate);
    const int first_lane = static_cast<int>(threadIdx.x) - lane;
#pragma unroll 4
    for (int i = lane; i < states; i += Tile::kLanes) {
      float2* to = reinterpret_cast<float2*>(dA_of(first_state + i));
      float2 sum = *to;
#pragma unroll
      for (int k = 0; k < Tile::kLanes; ++k) {
        const float2 share = shares[i][first_lane + (k ^ lane)];  // no two lanes at the same bank
        sum.x += share.x, sum.y += share.y;
      }
      *to = sum;
    }
    __syncwarp();  // the shares have been read
    clear_shares();
  }
  __device__ __forceinline__ void clear_shares() const {
    typename Tile::Shares* shares = shared.dA_shares(dstate);
    for (int i = 0; i < (Tile::keeps_shares(dstate) ? dstate : Tile::kStates); ++i) {
      shares[i][threadIdx.x] = make_float2(0.f, 0.f);
    }
  }

 private:
  /// What goes on from state to state.
  struct Cursor {
    const float *rates, *entry, *B;
    float *carry, *sums;
    float2* dA_share;
    float rate[kPair];
  };
  static constexpr int kRow = 3 * Tile::kChannels, kAdjoint = Tile::kChannels;
  static constexpr int kToC = Tile::kStates * Tile::Coefficients::kPitch;
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
    at.carry = adjoint_of(first_state);
    at.entry = &shared.entry[buffer][0][row];
    at.B = &shared.coefficients.tile[buffer].B[0][Tile::Coefficients::column(lane * K)];
    at.sums = &shared.warp_sums[warp][0][0];
    at.dA_share = &shared.dA_shares(dstate)[Tile::keeps_shares(dstate) ? first_state : 0][threadIdx.x];
    load_pair(at.rates, at.rate);
#pragma unroll 1
    for (int i = 0; i < states; ++i) take_state<growing>(at);
    __syncwarp();
    sums.begin_get();
    if (!Tile::keeps_shares(dstate)) add_up_dA(first_state, states);
    sums.end_get(at.sums);
  }

  template <bool growing>
  __device__ __forceinline__ void take_state(Cursor& at) {
    const float rate[kPair] = {at.rate[0], at.rate[1]};
    float entry[kPair], carry[kPair], B[K], C[K];
    load_pair(at.entry, entry);
    load_pair(at.carry, carry);
    load_row(at.B + kToC, C);
    load_row(at.B, B);
    __syncwarp();
    sums.begin_get();

    Steps a, b, cdy;
    float whole[kPair], before[kPair], after[kPair], h[kPair], r[kPair];
#pragma unroll
    for (int c = 0; c < kPair; ++c) whole[c] = exp2_approximate(total[c] * rate[c]);
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        a[c][k] = exp2_approximate(step[c][k] * rate[c]);
        b[c][k] = input[c][k] * B[k];
        cdy[c][k] = dy[c][k] * C[k];
        keep(b[c][k]);
        keep(cdy[c][k]);
      }
    }
    if constexpr (growing) {
      chain_both(a, b, cdy, entry, carry, before, after, h, r);
    } else {
      run_both(a, b, cdy, h, r);
      scan_both(whole, entry, carry, before, after, h, r);
    }
    if (lane == 0) *reinterpret_cast<float2*>(at.carry) = make_float2(r[0], r[1]);
    sums.end_get(at.sums);
    accumulate(a, b, cdy, B, C, rate, before, after, *at.dA_share);
    sums.turn();
    at.rates += kRow;
    load_pair(at.rates, at.rate);  // early: a state begins with its exponentials
    at.carry += kRow;
    at.entry += Tile::kChannels;
    at.B += Tile::Coefficients::kPitch;
    at.sums += Tile::Sums::kFloats;
    at.dA_share += Tile::kThreads;
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

  /// Runs both recurrences again, now with what came before and after, and adds up or hands on all that depends on
  /// them. The state is a sum, not fused, of the product that the adjoint needs as well.
  __device__ __forceinline__ void accumulate(const Steps& a, const Steps& b, const Steps& cdy, const float (&B)[K],
                                             const float (&C)[K], const float (&rate)[kPair],
                                             const float (&before)[kPair], const float (&after)[kPair],
                                             float2& dA_share) {
    float decayed[kPair][K], sum[K];  // decayed: a_t h_{t-1}; sum: over the pair, of dC, then of dB
    float h[kPair] = {before[0], before[1]}, g[kPair] = {cdy[0][K - 1] + after[0], cdy[1][K - 1] + after[1]};
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        decayed[c][k] = a[c][k] * h[c];
        h[c] = __fadd_rn(decayed[c][k], b[c][k]);
        y[c][k] = fmaf(C[k], h[c], y[c][k]);
        sum[k] = c == 0 ? dy[c][k] * h[c] : fmaf(dy[c][k], h[c], sum[k]);
      }
      if (k % 4 == 3) sums.put(2 + k / 4, {sum[k - 3], sum[k - 2], sum[k - 1], sum[k]});
    }
    float dA[kPair] = {dA_share.x, dA_share.y};
#pragma unroll
    for (int k = K - 1; k >= 0; --k) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        const float q = g[c] * decayed[c][k];
        dinput[c][k] = fmaf(g[c], B[k], dinput[c][k]);
        sum[k] = c == 0 ? g[c] * input[c][k] : fmaf(g[c], input[c][k], sum[k]);
        dexponent[c][k] = fmaf(rate[c], q, dexponent[c][k]);
        dA[c] = fmaf(step[c][k], q, dA[c]);
        if (k > 0) g[c] = fmaf(a[c][k], g[c], cdy[c][k - 1]);
      }
      if (k % 4 == 0) sums.put(k / 4, {sum[k], sum[k + 1], sum[k + 2], sum[k + 3]});
    }
    dA_share = make_float2(dA[0], dA[1]);
  }

 protected:
  Shared& shared;
  const int dstate;
  const int warp, lane, row;  // row: the pair's first channel within the block
  LaneSums<Tile::kLanes> sums;
  bool is_growing;
  float total[kPair];          // of delta', over the lane's steps
  Steps step, input, dy;       // delta', delta' u, the gradient of y
  Steps y, dinput, dexponent;  // y and the gradients of delta' u and of log2 a, summed over the states
};

}  // namespace mamba::kernels::cuda
