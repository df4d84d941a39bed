// Between memory, where a channel is a row of steps or of states, and vectors, where a channel is a lane: column i of
// some rows is the vector of their elements i.
//
// There are always as many rows as lanes. Rows past the last channel repeat it: what such a lane computes is what the
// last channel's own lane computes, so that storing it again does no harm, and only sums over lanes need care.
#pragma once

#include "cpu/convert.h"
#include "cpu/shuffle.h"
#include "cpu/vec.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

template <class T>
struct Rows {
  using Stored = std::remove_const_t<T>;
  using V = Vec<Wide<Stored>>;
  static constexpr int kCount = kLanes<Wide<Stored>>;

  T* row[kCount];
  bool adjacent;  // a column is contiguous in memory; only row[0] is told then

  /// `count` rows that begin `stride` elements apart.
  MAMBA_INLINE Rows(T* first, int64_t stride, int64_t count) : adjacent(stride == 1 && count >= kCount) {
    row[0] = first;
    for (int i = 1; i < (adjacent ? 1 : kCount); ++i) row[i] = first + (i < count ? i : count - 1) * stride;
  }
  /// The rows of `count` channels from `channel` on, where `group_size` channels share one.
  MAMBA_INLINE Rows(T* first, int64_t stride, int64_t channel, int64_t count, int64_t group_size) : adjacent(false) {
    for (int i = 0; i < kCount; ++i) row[i] = first + (channel + (i < count ? i : count - 1)) / group_size * stride;
  }

  MAMBA_INLINE V column(int64_t at) const {
    if (adjacent) return load_wide<Stored>(row[0] + at);
    Stored gathered[kCount];
    for (int i = 0; i < kCount; ++i) gathered[i] = row[i][at];
    return load_wide<Stored>(gathered);
  }
  MAMBA_INLINE void set_column(int64_t at, V value) const {
    const Storage<Stored> stored = narrowed<Stored>(value);
    if (adjacent) return store(row[0] + at, stored);
    Stored scattered[kCount];
    store(scattered, stored);
    for (int i = 0; i < kCount; ++i) row[i][at] = scattered[i];
  }

  /// Columns at, at + 1, ... at + kColumns - 1, a multiple of kSpan. Rows are often a power of two apart, so that their
  /// cache lines compete for few places: all that is wanted of a row is taken before the next is touched.
  template <int kColumns>
  MAMBA_INLINE void block(int64_t at, V* columns) const {
    for (int i = 0; i < kStep; ++i) {
      for (int j = i; j < kColumns; j += kStep) columns[j] = pieces(at + j - i, i);
    }
    for (int j = 0; j < kColumns; j += kStep) transpose_blocks(columns + j);
  }
  template <int kColumns>
  MAMBA_INLINE void set_block(int64_t at, const V* columns) const {
    V block[kColumns];
    for (int j = 0; j < kColumns; ++j) block[j] = columns[j];
    for (int j = 0; j < kColumns; j += kStep) transpose_blocks(block + j);
    for (int i = 0; i < kStep; ++i) {
      for (int j = i; j < kColumns; j += kStep) set_pieces(at + j - i, i, block[j]);
    }
  }

 private:
  // kSpan elements of every kSpan-th row.
  static constexpr int kStep = kSpan<Wide<Stored>>, kPieceBytes = kStep * sizeof(Stored);
  using Word = std::conditional_t<kPieceBytes == 16, LongWord, uint64_t>;
  static constexpr int kPieceWords = kPieceBytes / sizeof(Word), kWords = kCount / kStep * kPieceWords;

  MAMBA_INLINE V pieces(int64_t at, int first) const {
    Word word[kWords];
    for (int i = 0; i < kCount / kStep; ++i) memcpy(word + i * kPieceWords, row[first + i * kStep] + at, kPieceBytes);
    return widened<Stored>(joined<Storage<Stored>>(word, std::make_integer_sequence<int, kWords>()));
  }
  MAMBA_INLINE void set_pieces(int64_t at, int first, V value) const {
    Word word[kWords];
    split(narrowed<Stored>(value), word, std::make_integer_sequence<int, kWords>());
    for (int i = 0; i < kCount / kStep; ++i)
      memcpy(static_cast<void*>(row[first + i * kStep] + at), word + i * kPieceWords, kPieceBytes);
  }
};

/// `count` strided numbers, widened; to[] has room for whole vectors.
template <class T>
void load_strided(const T* from, int64_t stride, int64_t count, Wide<T>* to) {
  constexpr int64_t kCount = kLanes<Wide<T>>;
  for (int64_t i = 0; i < count; i += kCount)
    store(to + i, Rows<const T>(from + i * stride, stride, count - i).column(0));
}

/// Columns at + i, at + i + 1, ... kColumns at a time, into columns[i * step], ... as long as i stays below count.
template <int kColumns, class T, class V>
MAMBA_INLINE void load_blocks(const Rows<T>& rows, int64_t at, int64_t& i, int64_t count, V* columns, int64_t step) {
  for (; i + kColumns <= count; i += kColumns) {
    V block[kColumns];
    rows.template block<kColumns>(at + i, block);
    for (int j = 0; j < kColumns; ++j) columns[(i + j) * step] = block[j];
  }
}

/// Columns at, at + stride, ... into columns[0], columns[step], ...
template <class T, class V>
void load_columns(const Rows<T>& rows, int64_t at, int64_t stride, int64_t count, V* columns, int64_t step = 1) {
  int64_t i = 0;
  if (stride == 1 && !rows.adjacent) {
    load_blocks<Rows<T>::kCount>(rows, at, i, count, columns, step);
    load_blocks<kSpan<Element<V>>>(rows, at, i, count, columns, step);
  }
  for (; i < count; ++i) columns[i * step] = i > 0 && stride == 0 ? columns[0] : rows.column(at + i * stride);
}

template <class T, class V>
void store_columns(const Rows<T>& rows, int64_t at, int64_t stride, int64_t count, const V* columns) {
  constexpr int kLong = Rows<T>::kCount, kShort = kSpan<Element<V>>;
  int64_t i = 0;
  if (stride == 1 && !rows.adjacent) {
    for (; i + kLong <= count; i += kLong) rows.template set_block<kLong>(at + i, columns + i);
    for (; i + kShort <= count; i += kShort) rows.template set_block<kShort>(at + i, columns + i);
  }
  for (; i < count; ++i) rows.set_column(at + i * stride, columns[i]);
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
