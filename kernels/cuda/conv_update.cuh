// A step of the convolution with four taps: a thread takes the channels of 16 bytes, whose states are 48.
#pragma once

#include "cuda/conv.cuh"

namespace mamba::kernels::cuda {

/// kRows rows share what is read of the weights, which at four taps in float is more than a row's states.
template <class T, int kRows>
__global__ void __launch_bounds__(kConvUpdateThreads)
    conv_update_kernel(const __grid_constant__ ConvUpdateParams p, int64_t first_row) {
  constexpr int kChannels = 16 / static_cast<int>(sizeof(T)), kTaps = kConvTaps, kStates = kConvTaps - 1;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kConvUpdateThreads + threadIdx.x) * kChannels;
  if (channel >= p.dim) return;
  const int64_t row = first_row + static_cast<int64_t>(blockIdx.y) * kRows;
  const auto state_of = [&](int64_t slot) {
    return reinterpret_cast<char*>(static_cast<T*>(p.state.data) + slot * p.state.batch_stride + channel * kStates);
  };
  Elements<T, kChannels * kStates> states[kRows];
  Elements<T, kChannels> xs[kRows];
  int64_t slots[kRows];  // negative: none
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    slots[r] = row + r < p.rows ? slot_of(p.slot_of_row, row + r) : -1;
    if (slots[r] >= p.slots) slots[r] = -1;
    if (slots[r] < 0) continue;
    states[r].load(state_of(slots[r]));
    xs[r].load(reinterpret_cast<const char*>(static_cast<const T*>(p.x.data) + (row + r) * p.x.batch_stride + channel));
  }
  Elements<float, kChannels * kTaps> weight_words;
  Elements<float, kChannels> bias_words{};
  weight_words.load(reinterpret_cast<const char*>(static_cast<const float*>(p.weight) + channel * kTaps));
  if (p.bias) bias_words.load(reinterpret_cast<const char*>(static_cast<const float*>(p.bias) + channel));
  float weight[kChannels * kTaps];
  weight_words.widen_into(weight);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= p.rows) break;
    Elements<T, kChannels> out{};
    if (slots[r] >= 0) {
      T seen[kChannels * kStates], x[kChannels];
      float sums[kChannels];
      memcpy(seen, states[r].words, sizeof(seen));
      memcpy(x, xs[r].words, sizeof(x));
      bias_words.widen_into(sums);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float& sum = sums[c];
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
          const T input = k < kStates ? seen[c * kStates + k] : x[c];
          sum = generic::tap(sum, weight[c * kTaps + k], widen(input));
          if (k > 0) seen[c * kStates + k - 1] = input;
        }
        if (p.silu) sum = generic::activated(sum);
      }
      memcpy(states[r].words, seen, sizeof(seen));
      states[r].store(state_of(slots[r]));
      out.narrow_from(sums);
    }
    out.store(reinterpret_cast<char*>(static_cast<T*>(p.out.data) + (row + r) * p.out.batch_stride + channel));
  }
}

template <class T, int kRows>
Error conv_update_rows(const ConvUpdateParams& params, CUstream_st* stream) {
  constexpr int64_t kChannels = 16 / static_cast<int64_t>(sizeof(T)), kMostRows = 65535 * kRows;
  for (int64_t first = 0; first < params.rows; first += kMostRows) {
    const int64_t rows = params.rows - first < kMostRows ? params.rows - first : kMostRows;
    const dim3 grid(static_cast<unsigned>(ceil_div(params.dim, kChannels * kConvUpdateThreads)),
                    static_cast<unsigned>(ceil_div(rows, kRows)));
    conv_update_kernel<T, kRows><<<grid, kConvUpdateThreads, 0, stream>>>(params, first);
  }
  return cudaGetLastError();
}

/// Several rows a thread where there are threads enough without.
template <class T>
Error conv_update_with(const ConvUpdateParams& params, CUstream_st* stream) {
  constexpr int64_t kManyRows = 32;
  return params.rows < kManyRows ? conv_update_rows<T, 1>(params, stream) : conv_update_rows<T, 4>(params, stream);
}

}  // namespace mamba::kernels::cuda
