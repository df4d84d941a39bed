// The convolution, its adjoint and its step for every case the contract allows. The CPU and CUDA run the same
// functions.
#pragma once

#include "generic/scan.h"
#include "mamba/kernels/conv.h"

#ifdef __CUDACC__
#include "cuda/fast_math.cuh"
#endif

namespace mamba::kernels::generic {

/// Sequence `index`; its slot is not used here.
MAMBA_HD inline Sequence sequence(const ConvParams& p, int64_t index) {
  ScanParams place;
  place.length = p.length;
  place.cu_seqlens = p.cu_seqlens;
  return sequence(place, index);
}

/// The sequence of a token: the last one that begins at or before it. Empty when the token lies outside all of them.
MAMBA_HD inline int64_t sequence_of(const ConvParams& p, int64_t batch, int64_t time) {
  if (!p.cu_seqlens) return batch;
  int64_t low = 0, high = p.sequences;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (p.cu_seqlens[middle] <= time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

/// One more term of the sum over the taps. Rounded alike in every kernel of a backend: a convolution packed, in chunks
/// or step by step has the bits of the whole.
template <class Real>
MAMBA_HD inline Real tap(Real sum, Real weight, Real seen) {
#ifdef __CUDA_ARCH__
  return fma(weight, seen, sum);
#else
  return sum + weight * seen;
#endif
}

/// The silu that follows; likewise.
template <class Real>
MAMBA_HD inline Real activated(Real pre) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<Real, float>) return pre * kernels::cuda::fast_sigmoid(pre);
#endif
  return silu(pre);
}
template <class Real>
MAMBA_HD inline Real activated_slope(Real pre) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<Real, float>) {
    const float s = kernels::cuda::fast_sigmoid(pre);
    return s * (1.f + pre * (1.f - s));
  }
#endif
  return silu_slope(pre);
}

/// One channel of one sequence: element i of initial_state followed by x.
template <class T>
struct Seen {
  const ConvParams& p;
  const Sequence s;
  const int64_t index, channel;

  MAMBA_HD Seen(const ConvParams& params, int64_t index_, int64_t channel_)
      : p(params), s(sequence(params, index_)), index(index_), channel(channel_) {}

  MAMBA_HD Wide<T> operator[](int64_t i) const {
    if (i >= p.width - 1) return load<T>(p.x, s.batch, channel, s.start + i - (p.width - 1));
    return p.initial_state.data ? load<T>(p.initial_state, index, channel, i) : Wide<T>(0);
  }

  MAMBA_HD Wide<T> pre(int64_t step) const {
    const Wide<T>* weight = static_cast<const Wide<T>*>(p.weight) + channel * p.width;
    Wide<T> sum = p.bias ? static_cast<const Wide<T>*>(p.bias)[channel] : Wide<T>(0);
    for (int64_t k = 0; k < p.width; ++k) sum = tap(sum, weight[k], (*this)[step + k]);
    return sum;
  }
};

/// One element of out. A token outside every sequence gives 0.
template <class T>
MAMBA_HD void conv_forward(const ConvParams& p, int64_t batch, int64_t channel, int64_t time) {
  const int64_t index = sequence_of(p, batch, time);
  Wide<T> out = 0;
  if (index >= 0 && index < p.sequences) {
    const Seen<T> seen(p, index, channel);
    const int64_t step = time - seen.s.start;
    if (step >= 0 && step < seen.s.steps) {
      const Wide<T> pre = seen.pre(step);
      out = p.silu ? activated(pre) : pre;
    }
  }
  store<T>(p.out, batch, channel, time, out);
}

/// One channel of last_state.
template <class T>
MAMBA_HD void conv_last_state(const ConvParams& p, int64_t index, int64_t channel) {
  const Seen<T> seen(p, index, channel);
  for (int64_t i = 0; i < p.width - 1; ++i) {
    store<T>(p.last_state, index, channel, i, seen[seen.s.steps + i]);
  }
}

template <class T>
MAMBA_HD Wide<T>& dpre_at(const ConvGradParams& g, int64_t batch, int64_t channel, int64_t time) {
  return static_cast<Wide<T>*>(g.dpre)[(batch * g.conv.dim + channel) * g.conv.length + time];
}

/// One element of dpre. A token outside every sequence has no gradient.
template <class T>
MAMBA_HD void conv_dpre(const ConvGradParams& g, int64_t batch, int64_t channel, int64_t time) {
  const ConvParams& p = g.conv;
  const int64_t index = sequence_of(p, batch, time);
  Wide<T> dpre = 0;
  bool is_outside = true;
  if (index >= 0 && index < p.sequences) {
    const Seen<T> seen(p, index, channel);
    const int64_t step = time - seen.s.start;
    is_outside = step < 0 || step >= seen.s.steps;
    if (g.dout.data && !is_outside) {
      dpre = load<T>(g.dout, batch, channel, time);
      if (p.silu) dpre *= activated_slope(seen.pre(step));
    }
  }
  if (is_outside && g.dx.data) store<T>(g.dx, batch, channel, time, Wide<T>(0));
  dpre_at<T>(g, batch, channel, time) = dpre;
}

/// The gradients of one channel of one sequence. What is added to is zeroed by the caller.
template <class T>
MAMBA_HD void conv_backward(const ConvGradParams& g, int64_t index, int64_t channel) {
  using Real = Wide<T>;
  const ConvParams& p = g.conv;
  const Seen<T> seen(p, index, channel);
  const Sequence& s = seen.s;
  const Real* weight = static_cast<const Real*>(p.weight) + channel * p.width;

  // Element i of what was seen reached out at steps i - k, and last_state when it is among the last width - 1.
  for (int64_t i = g.dinitial_state.data ? 0 : p.width - 1; i < s.steps + p.width - 1; ++i) {
    const bool is_state = i < p.width - 1;
    if (!is_state && !g.dx.data) break;
    Real sum = 0;
    for (int64_t k = 0; k < p.width; ++k) {
      const int64_t step = i - k;
      if (step >= 0 && step < s.steps) sum += weight[k] * dpre_at<T>(g, s.batch, channel, s.start + step);
    }
    if (g.dlast_state.data && i >= s.steps) sum += load<T>(g.dlast_state, index, channel, i - s.steps);
    if (is_state) {
      store<T>(g.dinitial_state, index, channel, i, sum);
    } else {
      store<T>(g.dx, s.batch, channel, s.start + i - (p.width - 1), sum);
    }
  }
  if (g.dbias) {
    Real sum = 0;
    for (int64_t step = 0; step < s.steps; ++step) sum += dpre_at<T>(g, s.batch, channel, s.start + step);
    static_cast<Real*>(g.dbias)[index * p.dim + channel] = sum;
  }
  for (int64_t k = 0; g.dweight && k < p.width; ++k) {
    Real sum = 0;
    for (int64_t step = 0; step < s.steps; ++step) {
      sum += dpre_at<T>(g, s.batch, channel, s.start + step) * seen[step + k];
    }
    static_cast<Real*>(g.dweight)[(index * p.dim + channel) * p.width + k] = sum;
  }
}

/// One channel of one row, in place. A row without a slot gives 0 and touches nothing else.
template <class T>
MAMBA_HD void conv_update(const ConvUpdateParams& p, int64_t row, int64_t channel) {
  using Real = Wide<T>;
  const int64_t slot = slot_of(p.slot_of_row, row);
  if (slot < 0 || slot >= p.slots) return store<T>(p.out, row, channel, 0, Real(0));
  const Real* weight = static_cast<const Real*>(p.weight) + channel * p.width;
  const Real x = load<T>(p.x, row, channel, 0);
  Real sum = p.bias ? static_cast<const Real*>(p.bias)[channel] : Real(0);
  for (int64_t k = 0; k < p.width - 1; ++k) {
    sum = tap(sum, weight[k], load<T>(p.state, slot, channel, k));
    store<T>(p.state, slot, channel, k, k + 2 < p.width ? load<T>(p.state, slot, channel, k + 1) : x);
  }
  sum = tap(sum, weight[p.width - 1], x);
  store<T>(p.out, row, channel, 0, p.silu ? activated(sum) : sum);
}

}  // namespace mamba::kernels::generic
