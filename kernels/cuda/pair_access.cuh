// Moving 8 steps of two neighbouring channels between global memory and one thread.
#pragma once

#include "cuda/place.cuh"

namespace mamba::kernels::cuda {

/// What one instruction moves: four steps of a channel, in the order of the scan or against it; one step of both
/// channels; one element.
enum class PairAccess : int { kTime, kReversedTime, kChannels, kElements };

/// The best of these for a plane.
template <class T>
__device__ PairAccess pair_access(const Plane<T>& plane, const Place& place) {
  const T* lowest = plane.origin - (plane.step_stride < 0 ? 3 : 0);
  const bool are_quads = plane.channel_stride % 4 == 0 && place.steps % 4 == 0 &&
                         reinterpret_cast<uintptr_t>(lowest) % (4 * sizeof(T)) == 0;
  if (are_quads && plane.step_stride == 1) return PairAccess::kTime;
  if (are_quads && plane.step_stride == -1) return PairAccess::kReversedTime;
  const bool are_pairs = plane.channel_stride == 1 && plane.step_stride % 2 == 0 && place.channels % 2 == 0 &&
                         reinterpret_cast<uintptr_t>(plane.origin) % (2 * sizeof(T)) == 0;
  return are_pairs ? PairAccess::kChannels : PairAccess::kElements;
}

/// Kept as the 32-bit words that came, in the order of memory: taking them apart would wait for them.
template <class T>
class PairSteps {
  static constexpr int kSteps = 8, kPerWord = 4 / static_cast<int>(sizeof(T));
  using QuadWord = typename Quad<T>::Word;
  using PairWord = std::conditional_t<sizeof(T) == 4, uint2, uint32_t>;

 public:
  /// From the first of the channels and steps on; zeros where there are not `channels` channels or `left` steps.
  __device__ __forceinline__ void load(const Plane<T>& plane, int channel, int step, int channels, int left,
                                       PairAccess access) {
    const T* from = plane.at(channel, step);
    if (access == PairAccess::kTime || access == PairAccess::kReversedTime) {
      const bool is_reversed = access == PairAccess::kReversedTime;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* quad = from + (i / 2) * plane.channel_stride + quad_at(i % 2, is_reversed);
        const bool exists = i / 2 < channels && 4 * (i % 2) < left;
        keep_words(4 * i / kPerWord, exists ? read_only<QuadWord>(quad) : QuadWord{});
      }
    } else if (access == PairAccess::kChannels) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k, from += plane.step_stride) {
        keep_words(2 * k / kPerWord, k < left && channels > 0 ? read_only<PairWord>(from) : PairWord{});
      }
    } else {
      T x[2 * kSteps];
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        const int c = i / kSteps, k = i % kSteps;
        const bool exists = c < channels && k < left;
        x[i] = exists ? from[c * plane.channel_stride + k * plane.step_stride] : T();
      }
#pragma unroll
      for (int i = 0; i < 2 * kSteps / kPerWord; ++i) {
        if constexpr (sizeof(T) == 4) {
          words[i] = bit_cast<uint32_t>(x[i]);
        } else {
          words[i] = x[2 * i].bits | static_cast<uint32_t>(x[2 * i + 1].bits) << 16;
        }
      }
    }
  }

  __device__ __forceinline__ void widen_into(float (&x)[2][kSteps], PairAccess access) const {
    if (access == PairAccess::kChannels) {
      widen_by(x, [](int c, int k) { return 2 * k + c; });
    } else if (access == PairAccess::kReversedTime) {
      widen_by(x, [](int c, int k) { return kSteps * c + (k ^ 3); });
    } else {
      widen_by(x, [](int c, int k) { return kSteps * c + k; });
    }
  }

  /// Writes x, which has the channels and steps in the order of the scan.
  static __device__ __forceinline__ void store(const Plane<T>& plane, int channel, int step, int channels, int left,
                                               PairAccess access, const float (&x)[2][kSteps]) {
    T* to = plane.at(channel, step);
    if (access == PairAccess::kTime || access == PairAccess::kReversedTime) {
      const bool is_reversed = access == PairAccess::kReversedTime;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = i / 2, k = 4 * (i % 2);
        const float quad[4] = {x[c][k], x[c][k + 1], x[c][k + 2], x[c][k + 3]};
        QuadWord* at = reinterpret_cast<QuadWord*>(to + c * plane.channel_stride + quad_at(i % 2, is_reversed));
        if (c < channels && k < left) *at = Quad<T>::narrowed(quad).turned(is_reversed).word;
      }
    } else if (access == PairAccess::kChannels) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k, to += plane.step_stride) {
        if (k < left && channels > 0) *reinterpret_cast<PairWord*>(to) = narrowed(x[0][k], x[1][k]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        const int c = i / kSteps, k = i % kSteps;
        if (c < channels && k < left) narrow(x[c][k], to[c * plane.channel_stride + k * plane.step_stride]);
      }
    }
  }

 private:
  static __device__ __forceinline__ int quad_at(int quad, bool is_reversed) {
    return is_reversed ? -4 * quad - 3 : 4 * quad;
  }
  static __device__ __forceinline__ PairWord narrowed(float first, float second) {
    if constexpr (sizeof(T) == 4) {
      return bit_cast<PairWord>(make_float2(first, second));
    } else {
      return narrow_pair(first, second, T());
    }
  }

  __device__ __forceinline__ void keep_words(int at, const uint4& x) {
    words[at] = x.x, words[at + 1] = x.y, words[at + 2] = x.z, words[at + 3] = x.w;
  }
  __device__ __forceinline__ void keep_words(int at, const uint2& x) {
    words[at] = x.x, words[at + 1] = x.y;
  }
  __device__ __forceinline__ void keep_words(int at, uint32_t x) {
    words[at] = x;
  }

  /// index(c, k): where in memory's order the element of channel c and step k came.
  template <class Index>
  __device__ __forceinline__ void widen_by(float (&x)[2][kSteps], Index&& index) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int i = index(c, k);
        int word = static_cast<int>(words[i / kPerWord]);
        keep(word);  // else the compiler indexes the words at run time, in local memory
        if constexpr (sizeof(T) == 4) {
          x[c][k] = bit_cast<float>(word);
        } else {
          x[c][k] = widen(T{static_cast<uint16_t>(static_cast<uint32_t>(word) >> 16 * (i % 2))});
        }
      }
    }
  }

  uint32_t words[2 * kSteps / kPerWord];
};

}  // namespace mamba::kernels::cuda
