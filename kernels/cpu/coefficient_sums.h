// Where the gradients of B and C go: partial sums over the channels of a block, or over the time of a constant one.
#pragma once

#include "cpu/columns.h"
#include "cpu/level.h"
#include "mamba/kernels/config.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

template <class Real>
class CoefficientSums {
  using V = Vec<Real>;
  static constexpr int kCount = kLanes<Real>;

 public:
  CoefficientSums(const ScanParams& params, const Coefficient& coefficient, void* sums, const ChannelBlocks& blocks_,
                  const ScanPiece& piece_)
      : p(params), x(coefficient), blocks(blocks_), piece(piece_), data(static_cast<Real*>(sums)) {}

  bool are_wanted() const { return data; }

  /// Asks for what add_shared() will change.
  MAMBA_INLINE void prefetch(int64_t channel, int64_t n, int states, Range time) const {
    if (!data) return;
    for (int j = 0; j < states; ++j) prefetch_line(row(channel, n + j) + time.begin, time.end - time.begin);
  }
  /// Terms of channels that share the coefficient, summed over the lanes: all of them terms of some channel.
  template <int kStates, int kSteps>
  void add_shared(int64_t channel, int64_t n, Range time, const V (&terms)[kStates][kSteps]) const {
    if (!data) return;
    for (int j = 0; j < kStates; ++j) {
      Real* to = row(channel, n + j) + time.begin;
      const int64_t steps = time.end - time.begin;
      for (int64_t t = 0; t < steps; t += kCount, to += kCount) {
        V lanes[kCount];
        for (int i = 0; i < kCount; ++i) lanes[i] = terms[j][t + i];
        add_times(to, sum_lanes(lanes), steps - t);
      }
    }
  }

  /// Terms of channels that each have their own row, or a row together with some of the others.
  template <int kStates, int kSteps>
  void add_separate(Range channels, int64_t n, Range time, const V (&terms)[kStates][kSteps]) const {
    if (!data) return;
    for (int j = 0; j < kStates; ++j) {
      x.is_constant ? add_over_time(channels, n + j, time, terms[j])
                    : add_lane_by_lane(channels, n + j, time, terms[j]);
    }
  }

 private:
  const ScanParams& p;
  const Coefficient& x;
  const ChannelBlocks& blocks;
  const ScanPiece& piece;
  Real* const data;

  /// Of (slices, batch, groups, dstate, length).
  Real* row(int64_t channel, int64_t n) const {
    const int64_t size = p.dim / x.groups,
                  block = channel / blocks.unit * blocks.per_unit + channel % blocks.unit / blocks.width;
    const int64_t slice = block % (size / blocks.unit * blocks.per_unit);
    return data + (((slice * p.batch + piece.batch) * x.groups + channel / size) * p.dstate + n) * p.length;
  }

  void add_times(Real* to, V sum, int64_t steps) const {
    if (steps >= kCount) return store(to, load<V>(to) + sum);
    for (int64_t i = 0; i < steps; ++i) to[i] += sum[i];
  }

  void add_over_time(Range channels, int64_t n, Range time, const V* terms) const {
    V sum{};
    for (int64_t t = 0; t < time.end - time.begin; ++t) sum += terms[t];
    Real* first = data + (piece.sequence * p.dim + channels.begin) * p.dstate;
    const Rows<Real> rows(first, p.dstate, channels.end - channels.begin);
    rows.set_column(n, rows.column(n) + sum);
  }

  void add_lane_by_lane(Range channels, int64_t n, Range time, const V* terms) const {
    const int64_t steps = time.end - time.begin;
    Real by_channel[kCount][kCheckpointSpacing];
    store_columns(Rows<Real>(by_channel[0], kCheckpointSpacing, kCount), 0, 1, steps, terms);
    for (int64_t channel = channels.begin; channel < channels.end; ++channel) {
      Real* to = row(channel, n) + time.begin;
      for (int64_t t = 0; t < steps; ++t) to[t] += by_channel[channel - channels.begin][t];
    }
  }
};

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
