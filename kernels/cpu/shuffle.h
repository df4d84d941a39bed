// Lanes trading places: registers joined and split, blocks transposed, sums over lanes.
#pragma once

#include "cpu/vec.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Numbers in 16 bytes. Shuffles within each 16 bytes are the cheapest ones on every CPU.
template <class Real>
constexpr int kSpan = 16 / sizeof(Real);

/// What registers are put together from: for 16-bit numbers 8 bytes at a time, else 16, which clang++ sees through
/// better in halves.
#ifdef __clang__
using LongWord = uint64_t;
#else
using LongWord = unsigned __int128;
#endif
template <class To, class Word>
struct WordsOf {
  typedef Word Type __attribute__((vector_size(sizeof(To))));
};

/// One register of some words, and back.
template <class To, class Word, int... kAt>
MAMBA_INLINE To joined(const Word* word, std::integer_sequence<int, kAt...>) {
  return bits<To>(typename WordsOf<To, Word>::Type{word[kAt]...});
}
template <class From, class Word, int... kAt>
MAMBA_INLINE void split(const From& from, Word* word, std::integer_sequence<int, kAt...>) {
  const auto all = bits<typename WordsOf<From, Word>::Type>(from);
  ((word[kAt] = all[kAt]), ...);
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
