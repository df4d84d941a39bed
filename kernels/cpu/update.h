// One decoding step, in place: lanes over channels, a few states at a time.
#pragma once

#include "cpu/columns.h"
#include "cpu/tile.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Up to as many channels of a piece as there are lanes.
struct UpdateLanes {
  const UpdatePiece& piece;
  const Range channels;

  int64_t count() const { return channels.end - channels.begin; }

  /// From one channel to the next, and the first one's element 0.
  template <class Strides>
  MAMBA_INLINE int64_t stride(const Strides& x) const {
    return piece.of_one_head ? x.dim_stride : x.head_stride;
  }
  template <class T, class Strides>
  MAMBA_INLINE T* first(T* data, const Strides& x) const {
    return data + piece.head * x.head_stride + channels.begin * stride(x);
  }
  template <class T, class Strides>
  MAMBA_INLINE Rows<T> rows(T* data, const Strides& x) const {
    return {first(data, x), stride(x), count()};
  }
  template <class T>
  MAMBA_INLINE Vec<Wide<T>> load(const UpdateParams::PerRow& x) const {
    return rows(static_cast<const T*>(x.data) + piece.row * x.row_stride, x).column(0);
  }
  /// Parameters may be absent: zero.
  template <class V>
  MAMBA_INLINE V parameter(const UpdateParams::PerChannel& x) const {
    return x.data ? rows(static_cast<const Element<V>*>(x.data), x).column(0) : V{};
  }
};

/// exp(delta' A) takes delta' log2(e); `input` is delta' x, and y the sum so far.
template <class V>
struct UpdateStep {
  V step_log2e, input, y;
};

/// Channels in lanes, kStates states from n on.
template <int kStates, class V, class Stored>
void advance(const UpdateParams& p, const Rows<const Element<V>>& A_rows, const Rows<Stored>& states, int64_t n,
             const Element<V>* B, const Element<V>* C, UpdateStep<V>& x) {
  V A[kStates], h[kStates];
  load_columns(A_rows, n * p.A.state_stride, p.A.state_stride, kStates, A);
  load_columns(states, n * p.state.state_stride, p.state.state_stride, kStates, h);
  for (int j = 0; j < kStates; ++j) {
    h[j] = decay<true>(x.step_log2e, A[j]) * h[j] + x.input * B[j];
    x.y += C[j] * h[j];
  }
  store_columns(states, n * p.state.state_stride, p.state.state_stride, kStates, h);
}

/// Contiguous states in lanes, one of `count` channels after another. (A repeated channel must not step twice.)
template <class V, class Stored>
void advance_along_states(const Element<V>* A, int64_t A_stride, Stored* state, int64_t state_stride, int64_t count,
                          int64_t states, const Element<V>* B, const Element<V>* C, UpdateStep<V>& x) {
  constexpr int kCount = kLanes<Element<V>>;
  V sums[kCount], sum{};
  for (int64_t channel = 0; channel < kCount; ++channel) {
    if (channel < count) {
      sum = V{};
      for (int64_t n = 0; n < states; n += kCount) {
        const V a = decay<true>(broadcast<V>(x.step_log2e[channel]), load<V>(A + n));
        const V h = a * load_wide(state + n) + x.input[channel] * load<V>(B + n);
        store(state + n, narrowed<Stored>(h));
        sum += h * load<V>(C + n);
      }
      A += A_stride, state += state_stride;
    }
    sums[channel] = sum;
  }
  x.y += sum_lanes(sums);
}

/// Some states of B or C of one row, the same for all channels of a piece.
template <class T>
void load_run(const UpdateParams::RowCoefficient& x, int64_t row, int64_t group, Range n, Wide<T>* run) {
  const int64_t first = row * x.row_stride + group * x.group_stride + n.begin * x.state_stride;
  if (x.is_wide) {
    load_strided(static_cast<const Wide<T>*>(x.data) + first, x.state_stride, n.end - n.begin, run);
  } else {
    load_strided(static_cast<const T*>(x.data) + first, x.state_stride, n.end - n.begin, run);
  }
}

template <class T>
MAMBA_INLINE UpdateStep<Vec<Wide<T>>> prepare(const UpdateParams& p, const UpdateLanes& lanes) {
  using V = Vec<Wide<T>>;
  const V u = lanes.load<T>(p.x), raw = lanes.load<T>(p.dt) + lanes.parameter<V>(p.dt_bias);
  const V step = p.dt_softplus ? Softplus<V>(raw).value : raw;
  return {scaled_by_log2e(step), step * u, p.D.data ? lanes.parameter<V>(p.D) * u : V{}};
}

/// States n, of which B and C begin with the first.
template <class T, class Stored, class V>
void advance(const UpdateParams& p, const UpdateLanes& lanes, Range n, const Wide<T>* B, const Wide<T>* C,
             UpdateStep<V>& x) {
  const Wide<T>* A = static_cast<const Wide<T>*>(p.A.data);
  Stored* state = static_cast<Stored*>(p.state.data) + lanes.piece.slot * p.state.slot_stride;
  int64_t i = 0, count = n.end - n.begin;
  if (p.state.state_stride == 1 && p.A.state_stride == 1 && count >= kLanes<Wide<T>>) {
    i = count / kLanes<Wide<T>> * kLanes<Wide<T>>;
    advance_along_states(lanes.first(A, p.A) + n.begin, lanes.stride(p.A), lanes.first(state, p.state) + n.begin,
                         lanes.stride(p.state), lanes.count(), i, B, C, x);
  }
  if (i == count) return;
  const auto A_rows = lanes.rows(A, p.A);
  const auto states = lanes.rows(state, p.state);
  for (; i + kStatesAtOnce <= count; i += kStatesAtOnce) {
    advance<kStatesAtOnce>(p, A_rows, states, n.begin + i, B + i, C + i, x);
  }
  for (; i < count; ++i) advance<1>(p, A_rows, states, n.begin + i, B + i, C + i, x);
}

template <class T>
MAMBA_INLINE void store_out(const UpdateParams& p, const UpdateLanes& lanes, Vec<Wide<T>> y) {
  lanes.rows(static_cast<T*>(p.out.data) + lanes.piece.row * p.out.row_stride, p.out).set_column(0, y);
}

template <class T>
MAMBA_INLINE void finish(const UpdateParams& p, const UpdateLanes& lanes, Vec<Wide<T>> y) {
  if (p.z.data) {
    const auto z = lanes.load<T>(p.z);
    y *= z * sigmoid(z);
  }
  store_out<T>(p, lanes, y);
}

/// Several vectors of channels at a time, since those have nothing to wait for from each other.
template <class T, class Stored>
void update(const UpdateParams& p, const UpdatePiece& piece) {
  using Real = Wide<T>;
  UpdateStep<Vec<Real>> steps[kUpdateChannels / kLanes<Real>]{};
  const auto for_each = [&](auto&& f) {
    auto* x = steps;
    for (const Range channels : Tiles(piece.channels, kLanes<Real>)) f(UpdateLanes{piece, channels}, *x++);
  };
  if (piece.slot < 0) return for_each([&](const UpdateLanes& lanes, auto&) { store_out<T>(p, lanes, Vec<Real>{}); });

  for_each([&](const UpdateLanes& lanes, auto& x) { x = prepare<T>(p, lanes); });
  constexpr int64_t kRun = 64;
  for (const Range n : Tiles({0, p.dstate}, kRun)) {
    alignas(kVectorBytes) Real B[kRun], C[kRun];
    load_run<T>(p.B, piece.row, piece.group_B, n, B);
    load_run<T>(p.C, piece.row, piece.group_C, n, C);
    for_each([&](const UpdateLanes& lanes, auto& x) { advance<T, Stored>(p, lanes, n, B, C, x); });
  }
  for_each([&](const UpdateLanes& lanes, auto& x) { finish<T>(p, lanes, x.y); });
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
