// B and C over a tile of time: a number for each state and step where the channels at hand share it, a vector where
// they do not.
#pragma once

#include "cpu/columns.h"
#include "mamba/kernels/params.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Whether some neighbouring channels have a coefficient in common.
inline bool is_shared(const Coefficient& x, int64_t dim, Range channels) {
  const int64_t group_size = dim / x.groups;
  return !x.is_constant && channels.begin / group_size == (channels.end - 1) / group_size;
}

template <class Stored, int kSteps>
void load_shared(const Coefficient& x, const Stored* first, int64_t states, int64_t steps,
                 Wide<Stored> (*tile)[kSteps]) {
  using V = Vec<Wide<Stored>>;
  constexpr int kWidth = kLanes<Wide<Stored>>;
  static_assert(kSteps % kWidth == 0);
  // Here the lanes are points of time, and a column is a state. The tile is aligned to vectors.
  for (int64_t t = 0; t < steps; t += kWidth) {
    V* columns = reinterpret_cast<V*>(&tile[0][t]);
    const Stored* from = first + t * x.length_stride;
    if (x.length_stride == 1 && steps - t >= kWidth) {
      for (int64_t j = 0; j < states; ++j)
        columns[j * (kSteps / kWidth)] = load_wide<Stored>(from + j * x.state_stride);
    } else {
      const Rows<const Stored> rows(from, x.length_stride, steps - t);
      load_columns(rows, 0, x.state_stride, states, columns, kSteps / kWidth);
    }
  }
}

template <class Stored, int kSteps>
void load_separate(const Coefficient& x, const Rows<const Stored>& rows, int64_t states, int64_t steps,
                   Vec<Wide<Stored>> (*tile)[kSteps]) {
  for (int64_t j = 0; j < states; ++j) {
    load_columns(rows, j * x.state_stride, x.length_stride, x.is_constant ? 1 : steps, tile[j]);
    for (int64_t t = 1; t < (x.is_constant ? steps : 1); ++t) tile[j][t] = tile[j][0];
  }
}

/// States n, n + 1, ... of a coefficient at the times given.
template <class Stored, class Entry, int kSteps>
void load_coefficient(const Coefficient& x, int64_t dim, int64_t batch, Range channels, int64_t n, int64_t states,
                      Range time, Entry (*tile)[kSteps]) {
  const Stored* first =
      static_cast<const Stored*>(x.data) + batch * x.batch_stride + n * x.state_stride + time.begin * x.length_stride;
  const int64_t group_size = dim / x.groups, steps = time.end - time.begin;
  if constexpr (std::is_same_v<Entry, Wide<Stored>>) {
    load_shared(x, first + channels.begin / group_size * x.group_stride, states, steps, tile);
  } else {
    const Rows<const Stored> rows(first, x.group_stride, channels.begin, channels.end - channels.begin, group_size);
    load_separate(x, rows, states, steps, tile);
  }
}

/// The same for activations of type T, whether the coefficient is of this type or of the state type.
template <class T, class Entry, int kSteps>
void load_coefficient_of(const Coefficient& x, int64_t dim, int64_t batch, Range channels, int64_t n, int64_t states,
                         Range time, Entry (*tile)[kSteps]) {
  if (x.is_state_type) {
    load_coefficient<Wide<T>>(x, dim, batch, channels, n, states, time, tile);
  } else {
    load_coefficient<T>(x, dim, batch, channels, n, states, time, tile);
  }
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
