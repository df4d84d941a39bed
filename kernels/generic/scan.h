// The recurrence and its adjoint for every case the contract allows, written for clarity: no tuning, any strides, any
// dstate, real or complex, 64-bit offsets. The CPU and the CUDA backend run these same functions.
#pragma once

#include "mamba/kernels/config.h"
#include "mamba/kernels/params.h"
#include "mamba/kernels/step.h"

namespace mamba::kernels::generic {

/// Where a sequence lies: a dense batch row, or one of the packed sequences. Steps are counted in the scan's order.
struct Sequence {
  int64_t batch = 0, start = 0, steps = 0, slot = 0;
  bool reverse = false;

  MAMBA_HD int64_t time(int64_t step) const { return start + (reverse ? steps - 1 - step : step); }
};

/// Bad values of cu_seqlens, which CUDA does not read back, are clamped: wrong numbers, but within bounds.
MAMBA_HD inline Sequence sequence(const ScanParams& p, int64_t index) {
  if (!p.cu_seqlens) return {index, 0, p.length, 0, p.reverse};
  auto clamp = [](int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; };
  const int64_t start = clamp(p.cu_seqlens[index], 0, p.length);
  const int64_t stop = clamp(p.cu_seqlens[index + 1], start, p.length);
  return {0, start, stop - start, first_slot(index, start), p.reverse};
}

template <class T>
MAMBA_HD inline Wide<T> load(const Activation& x, int64_t batch, int64_t channel, int64_t time) {
  return widen(static_cast<const T*>(x.data)[batch * x.batch_stride + channel * x.dim_stride + time * x.length_stride]);
}

template <class T>
MAMBA_HD inline void store(const Activation& x, int64_t batch, int64_t channel, int64_t time, Wide<T> value) {
  narrow(value, static_cast<T*>(x.data)[batch * x.batch_stride + channel * x.dim_stride + time * x.length_stride]);
}

/// One channel's view of B or C.
template <class T, class State>
struct ChannelCoefficient {
  const void* data;
  int64_t offset, state_stride, length_stride;
  bool is_state_type;

  MAMBA_HD ChannelCoefficient(const Coefficient& x, int64_t dim, int64_t batch, int64_t channel)
      : data(x.data),
        offset(batch * x.batch_stride + channel / (dim / x.groups) * x.group_stride),
        state_stride(x.state_stride),
        length_stride(x.length_stride),
        is_state_type(x.is_state_type) {}

  MAMBA_HD State operator()(int64_t n, int64_t time) const {
    const int64_t at = offset + n * state_stride + time * length_stride;
    return is_state_type ? static_cast<const State*>(data)[at] : State(widen(static_cast<const T*>(data)[at]));
  }
};

/// The step size of a channel before and after the softplus.
template <class T>
struct StepSize {
  Wide<T> raw, value;

  MAMBA_HD StepSize(const ScanParams& p, int64_t batch, int64_t channel, int64_t time) {
    raw = load<T>(p.delta, batch, channel, time);
    if (p.delta_bias) raw += static_cast<const Wide<T>*>(p.delta_bias)[channel];
    value = p.delta_softplus ? softplus(raw) : raw;
  }
};

/// Checkpoints are laid out (batch, slots, dstate, dim).
template <class State>
MAMBA_HD inline State* checkpoint(const ScanParams& p, const Sequence& s, int64_t tile, int64_t n, int64_t channel) {
  const int64_t slot = s.batch * p.checkpoint_slots + s.slot + tile;
  return static_cast<State*>(p.checkpoints) + (slot * p.dstate + n) * p.dim + channel;
}

/// One channel of one sequence, first step to last. last_state serves as the running state.
template <class T, class State>
MAMBA_HD void forward(const ScanParams& p, int64_t index, int64_t channel) {
  using Real = Wide<T>;
  const Sequence s = sequence(p, index);
  const ChannelCoefficient<T, State> B(p.B, p.dim, s.batch, channel), C(p.C, p.dim, s.batch, channel);
  const State* A = static_cast<const State*>(p.A) + channel * p.dstate;
  const Real skip = p.D ? static_cast<const Real*>(p.D)[channel] : Real(0);

  const int64_t row = (index * p.dim + channel) * p.dstate;
  State* h = static_cast<State*>(p.last_state) + row;
  for (int64_t n = 0; n < p.dstate; ++n) {
    h[n] = p.initial_state ? static_cast<const State*>(p.initial_state)[row + n] : State(0);
  }

  for (int64_t step = 0; step < s.steps; ++step) {
    if (p.checkpoints && step % kCheckpointSpacing == 0) {
      for (int64_t n = 0; n < p.dstate; ++n) {
        *checkpoint<State>(p, s, step / kCheckpointSpacing, n, channel) = h[n];
      }
    }
    const int64_t t = s.time(step);
    const Real u = load<T>(p.u, s.batch, channel, t);
    const Real delta = StepSize<T>(p, s.batch, channel, t).value;
    Real y = 0;
    for (int64_t n = 0; n < p.dstate; ++n) {
      h[n] = decay(delta, A[n]) * h[n] + delta * u * B(n, t);
      y += readout(C(n, t), h[n]);
    }
    if (p.D) y += skip * u;
    if (p.z.data) y *= silu(load<T>(p.z, s.batch, channel, t));
    store<T>(p.out, s.batch, channel, t, y);
  }
}

/// Where the partial sums of the gradient of B or C go, for one channel of one sequence in one channel block.
template <class State>
struct CoefficientSums {
  State* data = nullptr;
  int64_t state_stride = 0, length_stride = 0;

  MAMBA_HD CoefficientSums(const ScanParams& p, const Coefficient& x, void* sums, const ChannelBlocks& blocks,
                           int64_t block, int64_t index, const Sequence& s, int64_t channel) {
    if (!sums) return;
    if (x.is_constant) {
      data = static_cast<State*>(sums) + (index * p.dim + channel) * p.dstate;
      state_stride = 1;
      return;
    }
    const int64_t size = p.dim / x.groups, slice = blocks.slice(block, size);
    data = static_cast<State*>(sums) + ((slice * p.batch + s.batch) * x.groups + channel / size) * p.dstate * p.length;
    state_stride = p.length;
    length_stride = 1;
  }
  MAMBA_HD void add(int64_t n, int64_t time, State value) const {
    if (data) data[n * state_stride + time * length_stride] += value;
  }
};

/// One channel of one sequence, last tile to first: the states of a tile are recomputed from its checkpoint.
template <class T, class State>
struct ChannelAdjoint {
  using Real = Wide<T>;
  const ScanGradParams& grad;
  const ScanParams& p;
  const Sequence s;
  const int64_t channel, row;
  const ChannelCoefficient<T, State> B, C;
  const CoefficientSums<State> dB, dC;
  State* adjoint;  // of the state that enters the tile at hand

  // Step by step, for the tile at hand.
  Real u[kCheckpointSpacing], step[kCheckpointSpacing], dy[kCheckpointSpacing];
  Real y[kCheckpointSpacing], du[kCheckpointSpacing], dstep[kCheckpointSpacing];

  MAMBA_HD ChannelAdjoint(const ScanGradParams& params, const ChannelBlocks& blocks, int64_t block, int64_t index,
                          int64_t channel_)
      : grad(params),
        p(params.scan),
        s(sequence(p, index)),
        channel(channel_),
        row((index * p.dim + channel_) * p.dstate),
        B(p.B, p.dim, s.batch, channel_),
        C(p.C, p.dim, s.batch, channel_),
        dB(p, p.B, params.dB, blocks, block, index, s, channel_),
        dC(p, p.C, params.dC, blocks, block, index, s, channel_),
        adjoint(static_cast<State*>(params.dinitial_state) + row) {
    for (int64_t n = 0; n < p.dstate; ++n) {
      adjoint[n] = params.dlast_state ? static_cast<const State*>(params.dlast_state)[row + n] : State(0);
    }
    for (int64_t tile = ceil_div(s.steps, kCheckpointSpacing) - 1; tile >= 0; --tile) {
      const int64_t first = tile * kCheckpointSpacing, left = s.steps - first;
      const int64_t count = left < kCheckpointSpacing ? left : kCheckpointSpacing;
      load_tile(first, count);
      for (int64_t n = 0; n < p.dstate; ++n) sweep_state(tile, n, count);
      store_tile(index, first, count);
    }
  }

 private:
  MAMBA_HD void load_tile(int64_t first, int64_t count) {
    const Real skip = p.D ? static_cast<const Real*>(p.D)[channel] : Real(0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = s.time(first + i);
      u[i] = load<T>(p.u, s.batch, channel, t);
      step[i] = StepSize<T>(p, s.batch, channel, t).value;
      dy[i] = grad.dout.data ? load<T>(grad.dout, s.batch, channel, t) : Real(0);
      if (p.z.data) dy[i] *= silu(load<T>(p.z, s.batch, channel, t));
      y[i] = p.D ? skip * u[i] : Real(0);
      du[i] = p.D ? skip * dy[i] : Real(0);
      dstep[i] = 0;
    }
  }

  MAMBA_HD void sweep_state(int64_t tile, int64_t n, int64_t count) {
    const State A = static_cast<const State*>(p.A)[channel * p.dstate + n];
    const int64_t first = tile * kCheckpointSpacing;
    State h[kCheckpointSpacing], a[kCheckpointSpacing], decayed[kCheckpointSpacing];
    State previous = *checkpoint<State>(p, s, tile, n, channel);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = s.time(first + i);
      a[i] = decay(step[i], A);
      decayed[i] = a[i] * previous;
      previous = h[i] = decayed[i] + step[i] * u[i] * B(n, t);
      y[i] += readout(C(n, t), h[i]);
    }
    State g = adjoint[n], dA(0);
    for (int64_t i = count - 1; i >= 0; --i) {
      const int64_t t = s.time(first + i);
      g = g + readout_adjoint(dy[i], C(n, t));
      const StepAdjoint<State> at(g, a[i], decayed[i], step[i], u[i], A, B(n, t));
      du[i] += at.du;
      dstep[i] += at.dstep;
      dA += at.dA;
      dB.add(n, t, at.dB);
      dC.add(n, t, readout_adjoint(dy[i], h[i]));
      g = at.dprevious;
    }
    adjoint[n] = g;
    if (grad.dA) static_cast<State*>(grad.dA)[row + n] += dA;
  }

  MAMBA_HD void store_tile(int64_t index, int64_t first, int64_t count) {
    Real dD = 0, dbias = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = s.time(first + i);
      const Real slope = p.delta_softplus ? softplus_slope(StepSize<T>(p, s.batch, channel, t).raw) : Real(1);
      const Real ddelta = dstep[i] * slope;
      dbias += ddelta;
      dD += dy[i] * u[i];
      if (grad.du.data) store<T>(grad.du, s.batch, channel, t, du[i]);
      if (grad.ddelta.data) store<T>(grad.ddelta, s.batch, channel, t, ddelta);
      if (grad.dz.data) {
        const Real dout = grad.dout.data ? load<T>(grad.dout, s.batch, channel, t) * y[i] : Real(0);
        store<T>(grad.dz, s.batch, channel, t, dout * silu_slope(load<T>(p.z, s.batch, channel, t)));
      }
    }
    if (grad.dD) static_cast<Real*>(grad.dD)[index * p.dim + channel] += dD;
    if (grad.ddelta_bias) static_cast<Real*>(grad.ddelta_bias)[index * p.dim + channel] += dbias;
  }
};

/// One channel block of one sequence, channel after channel.
template <class T, class State>
MAMBA_HD void backward(const ScanGradParams& params, const ChannelBlocks& blocks, int64_t index, int64_t block) {
  const Range channels = blocks.channels(block);
  for (int64_t channel = channels.begin; channel < channels.end; ++channel) {
    ChannelAdjoint<T, State>(params, blocks, block, index, channel);
  }
}

}  // namespace mamba::kernels::generic
