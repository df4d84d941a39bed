// Moving 8 steps of two neighbouring channels between global memory and one thread.
#pragma once

#include "cuda/place.cuh"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cuda {

/// A Plane whose strides along the dimension that vectors do not follow are known to be small: see pair_access().
template <class T, PairAccess access>
struct PairPlane {
  static constexpr bool kIsReversed = access == PairAccess::kReversedTime;
  static constexpr bool kAlongTime = access == PairAccess::kTime || kIsReversed;
  using Stride = std::conditional_t<access == PairAccess::kElements, int64_t, int>;

  T* origin = nullptr;
  Stride channel_stride = 0, step_stride = 0;

  PairPlane() = default;
  __device__ PairPlane(const Activation& x, const Place& place) {
    const Plane<T> plane(x, place);
    origin = plane.origin;
    channel_stride = static_cast<Stride>(plane.channel_stride);
    step_stride = static_cast<Stride>(plane.step_stride);
  }

  __device__ __forceinline__ T* at(int channel, int step) const {
    if constexpr (kAlongTime) {
      return origin + int64_t{channel} * channel_stride + (kIsReversed ? -step : step);
    } else if constexpr (access == PairAccess::kChannels) {
      return origin + channel + int64_t{step} * step_stride;
    } else {
      return origin + channel * channel_stride + step * step_stride;
    }
  }
};

/// Kept as the 32-bit words that came, in the order of memory: taking them apart would wait for them.
template <class T, PairAccess access>
class PairSteps {
  using Plane = PairPlane<T, access>;
  using QuadWord = typename Quad<T>::Word;
  using PairWord = std::conditional_t<sizeof(T) == 4, uint2, uint32_t>;
  static constexpr int kSteps = 8, kPerWord = 4 / static_cast<int>(sizeof(T));

 public:
  using Steps = float[2][kSteps];

  /// What an absent activation holds.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t& word : words) word = 0;
  }

  /// Loads 8 steps of both channels from `from` on; if not `is_whole`, zeros where there are not `channels` channels
  /// or `left` steps.
  template <bool is_whole>
  __device__ __forceinline__ void load(const Plane& plane, const T* from, int channels, int left) {
    auto exists = [&](int c, int k) { return is_whole || (c < channels && k < left); };
    if constexpr (Plane::kAlongTime) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* quad = from + (i / 2) * int64_t{plane.channel_stride} + quad_at(i % 2);
        keep_words(4 * i / kPerWord, exists(i / 2, 4 * (i % 2)) ? read_only<QuadWord>(quad) : QuadWord{});
      }
    } else if constexpr (access == PairAccess::kChannels) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k, from += plane.step_stride) {
        keep_words(2 * k / kPerWord, exists(0, k) ? read_only<PairWord>(from) : PairWord{});
      }
    } else {
      T x[2 * kSteps];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const T* next = from + c * plane.channel_stride;
#pragma unroll
        for (int k = 0; k < kSteps; ++k, next += plane.step_stride) {
          x[kSteps * c + k] = exists(c, k) ? *next : T();
        }
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

  __device__ __forceinline__ void widen_into(Steps& x) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int i = access == PairAccess::kChannels ? 2 * k + c : kSteps * c + (Plane::kIsReversed ? k ^ 3 : k);
        const uint32_t word = words[i / kPerWord];
        if constexpr (sizeof(T) == 4) {
          x[c][k] = bit_cast<float>(word);
        } else {
          x[c][k] = widen(T{static_cast<uint16_t>(word >> 16 * (i % 2))});
        }
      }
    }
  }

  /// Writes x, which has the channels and steps in the order of the scan, from `to` on.
  static __device__ __forceinline__ void store(const Plane& plane, T* to, int channels, int left, const Steps& x) {
    auto exists = [&](int c, int k) { return c < channels && k < left; };
    if constexpr (Plane::kAlongTime) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = i / 2, k = 4 * (i % 2);
        const float quad[4] = {x[c][k], x[c][k + 1], x[c][k + 2], x[c][k + 3]};
        T* at = to + c * int64_t{plane.channel_stride} + quad_at(i % 2);
        if (exists(c, k)) {
          *reinterpret_cast<QuadWord*>(at) = Quad<T>::narrowed(quad).turned(Plane::kIsReversed).word;
        }
      }
    } else if constexpr (access == PairAccess::kChannels) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k, to += plane.step_stride) {
        if (exists(0, k)) *reinterpret_cast<PairWord*>(to) = narrowed(x[0][k], x[1][k]);
      }
    } else {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        T* next = to + c * plane.channel_stride;
#pragma unroll
        for (int k = 0; k < kSteps; ++k, next += plane.step_stride) {
          if (exists(c, k)) narrow(x[c][k], *next);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ constexpr int quad_at(int quad) {
    return Plane::kIsReversed ? -4 * quad - 3 : 4 * quad;
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

  uint32_t words[2 * kSteps / kPerWord];
};

/// Calls f(std::integral_constant<PairAccess, access>()).
template <class F>
Error with_pair_access(PairAccess access, F&& f) {
  switch (access) {
    case PairAccess::kTime:
      return f(std::integral_constant<PairAccess, PairAccess::kTime>());
    case PairAccess::kReversedTime:
      return f(std::integral_constant<PairAccess, PairAccess::kReversedTime>());
    case PairAccess::kChannels:
      return f(std::integral_constant<PairAccess, PairAccess::kChannels>());
    default:
      return f(std::integral_constant<PairAccess, PairAccess::kElements>());
  }
}

}  // namespace mamba::kernels::cuda
