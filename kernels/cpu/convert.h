// Whole vectors of 16-bit floats to and from float: what widen() and narrow() of numeric.h say, lane by lane.
#pragma once

#include "cpu/vec.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));

/// As many T as there are lanes of Wide<T>, as they lie in memory.
template <class T>
struct StorageOf {
  using Type = Vec<T>;
};
template <>
struct StorageOf<Float16> {
  using Type = Halves;
};
template <>
struct StorageOf<BFloat16> {
  using Type = Halves;
};
template <class T>
using Storage = typename StorageOf<T>::Type;

template <class T>
MAMBA_INLINE Vec<Wide<T>> widened(const Storage<T>& stored) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return bits<Vec<float>>(__builtin_convertvector(stored, Words) << 16);
  } else if constexpr (std::is_same_v<T, Float16>) {
    const Words half = __builtin_convertvector(stored, Words), magnitude = (half & 0x7fff) << 13;
    const Words normal = magnitude + (112u << 23);
    const Words subnormal = bits<Words>(bits<Vec<float>>(magnitude + (113u << 23)) - 0x1p-14f);
    const Words finite = magnitude < (1u << 23) ? subnormal : normal;
    const Words value = magnitude < (31u << 23) ? finite : magnitude | 0x7f800000u;
    return bits<Vec<float>>(value | (half & 0x8000) << 16);
  } else {
    return stored;
  }
}

template <class T>
MAMBA_INLINE Vec<Wide<T>> load_wide(const T* from) {
  return widened<T>(load<Storage<T>>(from));
}

/// Rounds to nearest even.
template <class T>
MAMBA_INLINE Storage<T> narrowed(const Vec<Wide<T>>& value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const Words word = bits<Words>(value);
    const Words rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    return __builtin_convertvector((word & 0x7fffffffu) > 0x7f800000u ? Words{} + 0x7fc0u : rounded, Halves);
  } else if constexpr (std::is_same_v<T, Float16>) {
    const Words word = bits<Words>(value), magnitude = word & 0x7fffffffu;
    const Words normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Words subnormal = bits<Words>(bits<Vec<float>>(magnitude) + 0.5f) - 0x3f000000u;
    const Words finite = magnitude < 0x38800000u ? subnormal : normal;
    const Words infinite = magnitude > 0x7f800000u ? Words{} + 0x7e00u : Words{} + 0x7c00u;
    const Words half = magnitude < 0x477ff000u ? finite : infinite;
    return __builtin_convertvector(half | ((word >> 16) & 0x8000u), Halves);
  } else {
    return value;
  }
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
