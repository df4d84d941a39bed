// Several elements that follow each other in memory, moved by as few instructions as there can be.
#pragma once

#include "cuda/intrinsics.cuh"

namespace mamba::kernels::cuda {

/// Elements of T as they came from memory, in words: taking them apart would wait for them.
template <class T, int kCount>
struct Elements {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  using Word =
      std::conditional_t<(kBytes >= 16), uint4,
                         std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, uint32_t, uint16_t>>>;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));

  Word words[kWords];

  static __device__ __forceinline__ Elements of(const T (&x)[kCount]) {
    Elements elements;
    memcpy(elements.words, x, sizeof(x));
    return elements;
  }
  __device__ __forceinline__ void take_apart(T (&x)[kCount]) const { memcpy(x, words, sizeof(words)); }

  __device__ __forceinline__ void load(const char* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(from)[i];
  }
  __device__ __forceinline__ void load(const char* from, uint32_t stride) {
    T x[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = *reinterpret_cast<const T*>(from + i * stride);
    *this = of(x);
  }
  __device__ __forceinline__ void store(char* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
  }
  __device__ __forceinline__ void widen_into(float (&to)[kCount]) const {
    T x[kCount];
    take_apart(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = widen(x[i]);
  }
  __device__ __forceinline__ void narrow_from(const float (&x)[kCount]) {
    if constexpr (sizeof(T) == 4) {
      memcpy(words, x, sizeof(words));
    } else if constexpr (kCount == 1) {
      words[0] = static_cast<uint16_t>(narrow_pair(x[0], 0, T()));
    } else {
      uint32_t pairs[kCount / 2];
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) pairs[i] = narrow_pair(x[2 * i], x[2 * i + 1], T());
      memcpy(words, pairs, sizeof(words));
    }
  }
};

/// Rounded by one instruction.
template <class T>
__device__ __forceinline__ void narrow_into(float x, T* to) {
  if constexpr (sizeof(T) == 4) {
    *to = x;
  } else {
    to->bits = static_cast<uint16_t>(narrow_pair(x, 0, T()));
  }
}

}  // namespace mamba::kernels::cuda
