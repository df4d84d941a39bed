// A step of the convolution with four taps: a thread takes some channels, whose states follow each other in memory.
#pragma once

#include "cuda/conv.cuh"

namespace mamba::kernels::cuda {

/// The states of a thread's channels: three times as many elements.
template <class T, int kChannels>
struct UpdateStates {
  static constexpr int kStates = kConvTaps - 1;

  Elements<T, kChannels> pieces[kStates];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kStates; ++i) pieces[i].load(reinterpret_cast<const char*>(from + i * kChannels));
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kStates; ++i) pieces[i].store(reinterpret_cast<char*>(to + i * kChannels));
  }
};

/// kRows rows share what is read of the weights, which at four taps in float is more than a row's states. Where there
/// are several, the lanes of a warp exchange their states, so that each store writes whole sectors.
template <class T, int kChannels, int kRows>
__global__ void __launch_bounds__(kConvUpdateThreads)
    conv_update_kernel(const __grid_constant__ ConvUpdateParams p, int64_t first_row) {
  using States = UpdateStates<T, kChannels>;
  using Piece = Elements<T, kChannels>;
  constexpr int kTaps = kConvTaps, kStates = States::kStates;
  constexpr bool kExchanges = kRows > 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kConvUpdateThreads + threadIdx.x) * kChannels;
  const int64_t row = first_row + static_cast<int64_t>(blockIdx.y) * kRows;
  const bool exists = channel < p.dim;
  if (!kExchanges && !exists) return;
  const auto states_of = [&](int64_t slot, int64_t of_channel) {
    return static_cast<T*>(p.state.data) + slot * p.state.batch_stride + of_channel * kStates;
  };
  States states[kRows];
  Piece xs[kRows];
  int64_t slots[kRows];  // negative: none
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    slots[r] = row + r < p.rows ? slot_of(p.slot_of_row, row + r) : -1;
    if (slots[r] >= p.slots) slots[r] = -1;
    if (slots[r] < 0 || !exists) continue;
    states[r].load(states_of(slots[r], channel));
    xs[r].load(reinterpret_cast<const char*>(static_cast<const T*>(p.x.data) + (row + r) * p.x.batch_stride + channel));
  }
  Elements<float, kTaps> weights[kChannels];
  float weight[kChannels][kTaps], bias[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    if (!exists) break;
    weights[c].load(reinterpret_cast<const char*>(static_cast<const float*>(p.weight) + (channel + c) * kTaps));
    bias[c] = p.bias ? static_cast<const float*>(p.bias)[channel + c] : 0;
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) weights[c].widen_into(weight[c]);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= p.rows) break;
    Piece out{};
    if (slots[r] >= 0) {
      T seen[kChannels * kStates], x[kChannels];
      float sums[kChannels];
      memcpy(seen, states[r].pieces, sizeof(seen));
      memcpy(x, xs[r].words, sizeof(x));
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        sums[c] = bias[c];
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
          const T input = k < kStates ? seen[c * kStates + k] : x[c];
          sums[c] = generic::tap(sums[c], weight[c][k], widen(input));
          if (k > 0) seen[c * kStates + k - 1] = input;
        }
        if (p.silu) sums[c] = generic::activated(sums[c]);
      }
      memcpy(states[r].pieces, seen, sizeof(seen));
      out.narrow_from(sums);
      if constexpr (kExchanges) {
        __shared__ Piece exchanged[kConvUpdateThreads * kStates];
        Piece* const of_warp = exchanged + (threadIdx.x - lane) * kStates;
        const int64_t first_channel = channel - lane * kChannels;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kStates; ++i) of_warp[lane * kStates + i] = states[r].pieces[i];
        __syncwarp();
        T* const to = states_of(slots[r], first_channel);
#pragma unroll
        for (int i = 0; i < kStates; ++i) {
          const int at =
              (i * kWarpSize + lane) * kChannels;  // elements, of which the warp's channels have kStates each
          if (at < (p.dim - first_channel) * kStates) {
            of_warp[i * kWarpSize + lane].store(reinterpret_cast<char*>(to + at));
          }
        }
      } else {
        states[r].store(states_of(slots[r], channel));
      }
    }
    if (exists)
      out.store(reinterpret_cast<char*>(static_cast<T*>(p.out.data) + (row + r) * p.out.batch_stride + channel));
  }
}

template <class T, int kChannels, int kRows>
Error conv_update_rows(const ConvUpdateParams& params, CUstream_st* stream) {
  constexpr int64_t kMostRows = 65535 * kRows;
  for (int64_t first = 0; first < params.rows; first += kMostRows) {
    const int64_t rows = params.rows - first < kMostRows ? params.rows - first : kMostRows;
    const dim3 grid(static_cast<unsigned>(ceil_div(params.dim, int64_t{kChannels * kConvUpdateThreads})),
                    static_cast<unsigned>(ceil_div(rows, int64_t{kRows})));
    conv_update_kernel<T, kChannels, kRows><<<grid, kConvUpdateThreads, 0, stream>>>(params, first);
  }
  return cudaGetLastError();
}

/// Several rows a thread, of the channels of 16 bytes, where there are threads enough without.
template <class T>
Error conv_update_with(const ConvUpdateParams& params, CUstream_st* stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  constexpr int64_t kManyRows = 32;
  return params.rows < kManyRows ? conv_update_rows<T, 2, 1>(params, stream)
                                 : conv_update_rows<T, kVector, 2>(params, stream);
}

}  // namespace mamba::kernels::cuda
