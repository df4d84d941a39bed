// Vectors as wide as the registers of one ISA level, by GNU vector extensions: operators work lane by lane.
//
// Everything that includes this header is compiled once for each level, with MAMBA_OPS_CPU_LEVEL naming the level's
// own namespace: nothing compiled for a newer CPU may have a name that code for an older one could be linked with.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "mamba/kernels/numeric.h"

#ifndef MAMBA_OPS_CPU_LEVEL
#error "MAMBA_OPS_CPU_LEVEL must name the namespace of an ISA level"
#endif

#define MAMBA_INLINE [[gnu::always_inline]] inline

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

// A vector wider than the register would be taken apart, at several times the cost.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

/// A register of numbers, of integers for the same lanes, and of what each 16 bytes of a register hold.
template <class Real>
struct Vectors;
template <>
struct Vectors<float> {
  typedef float Numbers __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Integers __attribute__((vector_size(kVectorBytes)));
  typedef float Piece __attribute__((vector_size(16)));
};
template <>
struct Vectors<double> {
  typedef double Numbers __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Integers __attribute__((vector_size(kVectorBytes)));
  typedef double Piece __attribute__((vector_size(16)));
};

template <class Real>
using Vec = typename Vectors<Real>::Numbers;

template <class V>
struct ElementOf;
template <>
struct ElementOf<Vec<float>> {
  using Type = float;
};
template <>
struct ElementOf<Vec<double>> {
  using Type = double;
};
template <class V>
using Element = typename ElementOf<V>::Type;
template <class V>
using Integers = typename Vectors<Element<V>>::Integers;

template <class Real>
constexpr int kLanes = kVectorBytes / sizeof(Real);

template <class To, class From>
MAMBA_INLINE To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <class V>
MAMBA_INLINE V load(const void* from) {
  V to;
  memcpy(&to, from, sizeof(V));
  return to;
}

template <class V>
MAMBA_INLINE void store(void* to, const V& from) {
  memcpy(to, &from, sizeof(V));
}

template <class V, class Real>
MAMBA_INLINE V broadcast(Real x) {
  return x - V{};
}

/// Whether a comparison holds in all lanes.
template <class Mask>
MAMBA_INLINE bool all(const Mask& mask) {
  uint64_t word[kVectorBytes / 8], every = ~uint64_t{0};
  memcpy(word, &mask, sizeof(word));
  for (uint64_t x : word) every &= x;
  return every == ~uint64_t{0};
}

/// The lanes of x followed by those of y, picked by Pattern::at(lane of the result).
template <class Pattern, class V, int... kAt>
MAMBA_INLINE V shuffle(const V& x, const V& y, std::integer_sequence<int, kAt...>) {
#ifdef __clang__
  return __builtin_shufflevector(x, y, Pattern::at(kAt)...);
#else
  return __builtin_shuffle(x, y, Integers<V>{Pattern::at(kAt)...});
#endif
}
template <class Pattern, class V>
MAMBA_INLINE V shuffle(const V& x, const V& y) {
  return shuffle<Pattern>(x, y, std::make_integer_sequence<int, kLanes<Element<V>>>());
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
