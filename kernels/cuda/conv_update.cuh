// A step of the convolution with four taps: a thread takes the channels of 16 bytes, whose states are 48.
#pragma once

#include "cuda/conv.cuh"

namespace mamba::kernels::cuda {

template <class T>
__global__ void __launch_bounds__(kConvUpdateThreads)
    conv_update_kernel(const __grid_constant__ ConvUpdateParams p, int64_t first_row) {
  constexpr int kChannels = 16 / static_cast<int>(sizeof(T)), kTaps = kConvTaps, kStates = kConvTaps - 1;
  const int64_t row = first_row + blockIdx.y;
  const int64_t channel = (static_cast<int64_t>(blockIdx.x) * kConvUpdateThreads + threadIdx.x) * kChannels;
  if (channel >= p.dim) return;
  T* const out_at = static_cast<T*>(p.out.data) + row * p.out.batch_stride + channel;
  const int64_t slot = slot_of(p.slot_of_row, row);
  Elements<T, kChannels> out{};
  if (slot < 0 || slot >= p.slots) return out.store(reinterpret_cast<char*>(out_at));

  T* const state = static_cast<T*>(p.state.data) + slot * p.state.batch_stride + channel * kStates;
  Elements<T, kChannels * kStates> words;
  Elements<T, kChannels> x_words;
  Elements<float, kChannels * kTaps> weight_words;
  Elements<float, kChannels> bias_words{};
  words.load(reinterpret_cast<const char*>(state));
  x_words.load(reinterpret_cast<const char*>(static_cast<const T*>(p.x.data) + row * p.x.batch_stride + channel));
  weight_words.load(reinterpret_cast<const char*>(static_cast<const float*>(p.weight) + channel * kTaps));
  if (p.bias) bias_words.load(reinterpret_cast<const char*>(static_cast<const float*>(p.bias) + channel));

  T seen[kChannels * kStates], x[kChannels];
  float weight[kChannels * kTaps], sums[kChannels];
  memcpy(seen, words.words, sizeof(seen));
  memcpy(x, x_words.words, sizeof(x));
  weight_words.widen_into(weight);
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
  memcpy(words.words, seen, sizeof(seen));
  words.store(reinterpret_cast<char*>(state));
  out.narrow_from(sums);
  out.store(reinterpret_cast<char*>(out_at));
}

template <class T>
Error conv_update_with(const ConvUpdateParams& params, CUstream_st* stream) {
  constexpr int64_t kChannels = 16 / static_cast<int64_t>(sizeof(T)), kMostRows = 65535;
  for (int64_t first = 0; first < params.rows; first += kMostRows) {
    const int64_t rows = params.rows - first < kMostRows ? params.rows - first : kMostRows;
    const dim3 grid(static_cast<unsigned>(ceil_div(params.dim, kChannels * kConvUpdateThreads)),
                    static_cast<unsigned>(rows));
    conv_update_kernel<T><<<grid, kConvUpdateThreads, 0, stream>>>(params, first);
  }
  return cudaGetLastError();
}

}  // namespace mamba::kernels::cuda
