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

  __device__ AdjointSweep(Shared& block_shared, int64_t states)
      : shared(block_shared),
        dstate(static_cast<int>(states)),
        warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % Tile::kLanes),
        row(static_cast<int>(threadIdx.x) / Tile::kLanes * kPair),
        sums(block_shared.lane_sums[warp], static_cast<int>(threadIdx.x) % kWarpSize) {}

  // This pair's columns of the arrays behind the block's shared memory, one row a state.
  __device__ __forceinline__ float* rates() const { return shared.tail() + row; }
  __device__ __forceinline__ float* dA_sums() const { return rates() + (dstate + 1) * Tile::kChannels; }
  __device__ __forceinline__ float* adjoint(int parity) const {
    return dA_sums() + (1 + parity) * dstate * Tile::kChannels;
  }

 public:
  /// Takes `states` states from `first_state` on through the tile. `parity` says which adjoints are the old ones.
  __device__ __forceinline__ void sweep(int buffer, int first_state, int states, int parity) {
    if (is_growing) {
      sweep_states<true>(buffer, first_state, states, parity);
    } else {
      sweep_states<false>(buffer, first_state, states, parity);
    }
  }

 private:
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
