// What the forward and the backward share: the channels at hand, in lanes, over a tile of time.
#pragma once

#include "cpu/columns.h"
#include "cpu/level.h"
#include "cpu/math.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// States whose recurrences are interleaved: enough to hide the latency of one, few enough for the registers.
constexpr int kStatesAtOnce = 4;

/// A range in pieces of `size`, the last of which may be shorter, for a range-based for.
class Tiles {
 public:
  MAMBA_INLINE Tiles(Range whole, int64_t size) : whole_(whole), size_(size) {}

  struct Iterator {
    int64_t at, end, size;
    MAMBA_INLINE Range operator*() const { return {at, at + size < end ? at + size : end}; }
    MAMBA_INLINE bool operator!=(const Iterator&) const { return at < end; }
    MAMBA_INLINE void operator++() { at += size; }
  };
  MAMBA_INLINE Iterator begin() const { return {whole_.begin, whole_.end, size_}; }
  MAMBA_INLINE Iterator end() const { return {whole_.end, whole_.end, size_}; }

 private:
  Range whole_;
  int64_t size_;
};

/// Points of a tile in the order of the scan: first, first + direction, ...
struct Walk {
  int64_t first, count, direction;

  /// Steps [begin, end) of a tile of `steps`.
  Walk(Range some, int64_t steps, bool reverse)
      : first(reverse ? steps - 1 - some.begin : some.begin),
        count(some.end - some.begin),
        direction(reverse ? -1 : 1) {}
};

// Memory is asked for line after line, which hardware can follow. Read crosswise at once, it could not. (These
// functions must be inline: g++ drops calls of functions that do nothing else.)

/// Asks for `count` elements in a row.
template <class T>
MAMBA_INLINE void prefetch_line(const T* first, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(first + i);
  __builtin_prefetch(first + count - 1);  // where the last line begins depends on the alignment
}

/// Asks for some channels of x over a range of time.
template <class T>
MAMBA_INLINE void prefetch(const Activation& x, const ScanPiece& piece, Range channels, Range time) {
  if (!x.data) return;
  const T* first = static_cast<const T*>(x.data) + piece.batch * x.batch_stride;
  if (x.length_stride == 1) {
    for (int64_t d = channels.begin; d < channels.end; ++d) {
      prefetch_line(first + d * x.dim_stride + time.begin, time.end - time.begin);
    }
  } else if (x.dim_stride == 1) {
    for (int64_t t = time.begin; t < time.end; ++t) {
      prefetch_line(first + t * x.length_stride + channels.begin, channels.end - channels.begin);
    }
  }
}

/// One channel a lane, of one sequence.
template <class T>
struct Lanes {
  using Real = Wide<T>;
  using V = Vec<Real>;

  const ScanPiece& piece;
  const int64_t dim;
  const Range channels;

  int64_t count() const { return channels.end - channels.begin; }

  /// The (dim) and (rows, dim, dstate) tensors. Parameters may be absent: zero.
  V parameter(const void* x) const {
    if (!x) return V{};
    return Rows<const Real>(static_cast<const Real*>(x) + channels.begin, 1, count()).column(0);
  }
  /// Adds to a (rows, dim) sum, unless it is absent.
  void add(void* x, int64_t row, V terms) const {
    if (!x) return;
    const Rows<Real> sums(static_cast<Real*>(x) + row * dim + channels.begin, 1, count());
    sums.set_column(0, sums.column(0) + terms);
  }
  template <class State>
  Rows<State> states(State* x, int64_t row, int64_t dstate) const {
    return {x + (row * dim + channels.begin) * dstate, dstate, count()};
  }

  /// tile[i] is x at time.begin + i.
  void load(const Activation& x, Range time, V* tile) const {
    load_columns(rows<const T>(x), time.begin * x.length_stride, x.length_stride, time.end - time.begin, tile);
  }
  void store(const Activation& x, Range time, const V* tile) const {
    store_columns(rows<T>(x), time.begin * x.length_stride, x.length_stride, time.end - time.begin, tile);
  }

 private:
  template <class Stored>
  Rows<Stored> rows(const Activation& x) const {
    Stored* first = static_cast<Stored*>(x.data) + piece.batch * x.batch_stride + channels.begin * x.dim_stride;
    return {first, x.dim_stride, count()};
  }
};

/// Bounds of some steps' sizes, to tell where exp(delta' A) needs no guard.
template <class V>
struct StepBounds {
  V longest{}, shortest{}, sum{};

  MAMBA_INLINE void add(V step) {
    longest = step > longest ? step : longest;
    shortest = step < shortest ? step : shortest;
    sum += step;
  }
  /// A NaN anywhere is unsafe.
  MAMBA_INLINE bool are_safe_for(V A_log2e) const {
    using Safe = SafeExponents<Element<V>>;
    const V x = longest * A_log2e, y = shortest * A_log2e;
    return all((x > Safe::kLeast) & (x < Safe::kMost) & (y > Safe::kLeast) & (y < Safe::kMost) & (sum == sum));
  }
};

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
