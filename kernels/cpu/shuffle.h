// Lanes trading places: registers joined and split, blocks transposed, sums over lanes.
#pragma once

#include "cpu/vec.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Numbers in 16 bytes. Shuffles within each 16 bytes are the cheapest ones on every CPU.
template <class Real>
constexpr int kSpan = 16 / sizeof(Real);

typedef float Span __attribute__((vector_size(16)));
typedef uint64_t HalfSpans __attribute__((vector_size(kVectorBytes / 2)));

template <int kFirst>
struct From {
  static constexpr int at(int lane) { return kFirst + lane; }
};
template <class V>
MAMBA_INLINE auto concatenated(V x, V y) {
  return shuffle<From<0>>(x, y, std::make_integer_sequence<int, 2 * sizeof(V) / sizeof(float)>());
}

/// One register out of several pieces of memory, and back. A piece is a Span, or half of one for 16-bit numbers.
template <class To, int kCount>
MAMBA_INLINE To joined(const Span (&piece)[kCount]) {
  if constexpr (kCount == 1) {
    return bits<To>(piece[0]);
  } else if constexpr (kCount == 2) {
    return bits<To>(concatenated(piece[0], piece[1]));
  } else {
    return bits<To>(concatenated(concatenated(piece[0], piece[1]), concatenated(piece[2], piece[3])));
  }
}
template <class To, int kCount>
MAMBA_INLINE To joined(const uint64_t (&piece)[kCount]) {
  HalfSpans all{};
  for (int i = 0; i < kCount; ++i) all[i] = piece[i];
  return bits<To>(all);
}

template <class V, int... kAt>
MAMBA_INLINE void split(V x, Span* piece, std::integer_sequence<int, kAt...>) {
  ((piece[kAt] = shuffle<From<4 * kAt>>(x, x, std::make_integer_sequence<int, 4>())), ...);
}
template <class V, int kCount>
MAMBA_INLINE void split(const V& from, Span (&piece)[kCount]) {
  split(bits<Vec<float>>(from), piece, std::make_integer_sequence<int, kCount>());
}
template <class V, int kCount>
MAMBA_INLINE void split(const V& from, uint64_t (&piece)[kCount]) {
  const HalfSpans all = bits<HalfSpans>(from);
  for (int i = 0; i < kCount; ++i) piece[i] = all[i];
}

/// In each 16 bytes: the elements of one half, of x and of y in turns.
template <class Real, bool kSecondHalf>
struct Interleaved {
  static constexpr int at(int lane) {
    const int place = lane % kSpan<Real>;
    return lane - place + (kSecondHalf ? kSpan<Real> / 2 : 0) + place / 2 + (place % 2 ? kLanes<Real> : 0);
  }
};
template <class V>
MAMBA_INLINE V interleave_low(V x, V y) {
  return shuffle<Interleaved<Element<V>, false>>(x, y);
}
template <class V>
MAMBA_INLINE V interleave_high(V x, V y) {
  return shuffle<Interleaved<Element<V>, true>>(x, y);
}

/// Transposes the kSpan x kSpan numbers that kSpan vectors hold in each of their 16 bytes.
template <class V>
MAMBA_INLINE void transpose_blocks(V* x) {
  if constexpr (kSpan<Element<V>> == 2) {
    const V low = interleave_low(x[0], x[1]), high = interleave_high(x[0], x[1]);
    x[0] = low, x[1] = high;
  } else {
    const V low02 = interleave_low(x[0], x[2]), high02 = interleave_high(x[0], x[2]);
    const V low13 = interleave_low(x[1], x[3]), high13 = interleave_high(x[1], x[3]);
    x[0] = interleave_low(low02, low13), x[1] = interleave_high(low02, low13);
    x[2] = interleave_low(high02, high13), x[3] = interleave_high(high02, high13);
  }
}

/// In each pair of groups of kGroup lanes: the first (or the second) of x, then that of y.
template <class Real, int kGroup, bool kSecond>
struct PickedGroups {
  static constexpr int at(int lane) {
    return lane + (kSecond ? kGroup : 0) + (lane / kGroup % 2 ? kLanes<Real> - kGroup : 0);
  }
};
template <int kGroup, class V>
MAMBA_INLINE V sum_pairs_of_groups(V x, V y) {
  return shuffle<PickedGroups<Element<V>, kGroup, false>>(x, y) + shuffle<PickedGroups<Element<V>, kGroup, true>>(x, y);
}

/// Lane i of the sum is the sum over the lanes of x[i], always added in the same order. Destroys x.
template <class V>
MAMBA_INLINE V sum_lanes(V* x) {
  constexpr int kBlock = kSpan<Element<V>>, kSums = kLanes<Element<V>> / kBlock;
  for (int i = 0; i < kSums; ++i) {
    V* block = x + i * kBlock;
    if constexpr (kBlock == 4) {
      block[0] = interleave_low(block[0], block[2]) + interleave_high(block[0], block[2]);
      block[1] = interleave_low(block[1], block[3]) + interleave_high(block[1], block[3]);
    }
    x[i] = interleave_low(block[0], block[1]) + interleave_high(block[0], block[1]);
  }
  if constexpr (kSums >= 2) {
    for (int i = 0; i < kSums / 2; ++i) x[i] = sum_pairs_of_groups<kBlock>(x[2 * i], x[2 * i + 1]);
  }
  if constexpr (kSums >= 4) x[0] = sum_pairs_of_groups<2 * kBlock>(x[0], x[1]);
  return x[0];
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
