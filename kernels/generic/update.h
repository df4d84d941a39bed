// One decoding step of one channel of one row: the recurrence of scan.h at length 1, in place.
#pragma once

#include "mamba/kernels/config.h"
#include "mamba/kernels/step.h"

namespace mamba::kernels::generic {

template <class T>
MAMBA_HD inline T* at(const UpdateParams::PerRow& x, int64_t row, int64_t head, int64_t dim) {
  return static_cast<T*>(x.data) + row * x.row_stride + head * x.head_stride + dim * x.dim_stride;
}

template <class T>
MAMBA_HD inline Wide<T> load(const UpdateParams::RowCoefficient& x, int64_t row, int64_t group, int64_t n) {
  const int64_t at = row * x.row_stride + group * x.group_stride + n * x.state_stride;
  return x.is_wide ? static_cast<const Wide<T>*>(x.data)[at] : widen(static_cast<const T*>(x.data)[at]);
}

template <class Real>
MAMBA_HD inline Real load(const UpdateParams::PerChannel& x, int64_t head, int64_t dim, int64_t n = 0) {
  return static_cast<const Real*>(x.data)[head * x.head_stride + dim * x.dim_stride + n * x.state_stride];
}

/// A row without a slot (padding; on CUDA also a slot out of range) gives 0 and touches nothing else.
template <class T, class Stored>
MAMBA_HD void update(const UpdateParams& p, int64_t row, int64_t head, int64_t dim) {
  using Real = Wide<T>;
  const int64_t slot = slot_of(p.slot_of_row, row);
  T& out = *at<T>(p.out, row, head, dim);
  if (slot < 0 || slot >= p.slots) {
    narrow(Real(0), out);
    return;
  }
  const Real x = widen(*at<const T>(p.x, row, head, dim));
  Real step = widen(*at<const T>(p.dt, row, head, dim));
  if (p.dt_bias.data) step += load<Real>(p.dt_bias, head, dim);
  if (p.dt_softplus) step = softplus(step);

  const int64_t group_B = head / (p.heads / p.B.groups), group_C = head / (p.heads / p.C.groups);
  const int64_t first = slot * p.state.slot_stride + head * p.state.head_stride + dim * p.state.dim_stride;
  Real y = 0;
  for (int64_t n = 0; n < p.dstate; ++n) {
    Stored& stored = static_cast<Stored*>(p.state.data)[first + n * p.state.state_stride];
    const Real h = decay(step, load<Real>(p.A, head, dim, n)) * static_cast<Real>(widen(stored)) +
                   step * x * load<T>(p.B, row, group_B, n);
    narrow(h, stored);
    y += readout(load<T>(p.C, row, group_C, n), h);
  }
  if (p.D.data) y += load<Real>(p.D, head, dim) * x;
  if (p.z.data) y *= silu(static_cast<Real>(widen(*at<const T>(p.z, row, head, dim))));
  narrow(y, out);
}

}  // namespace mamba::kernels::generic
