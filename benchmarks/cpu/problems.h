// Problems in raw memory for the kernels, and the same numbers for the scalar loops beside them.
#pragma once

#include <new>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "mamba/kernels/config.h"
#include "mamba/kernels/scan.h"
#include "scalar.h"

namespace mamba::benchmarks {
using kernels::Activation;
using kernels::Range;
using kernels::ScalarType;
namespace cpu = kernels::cpu;

/// Memory aligned as torch aligns its own.
template <class T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  Aligned() = default;
  template <class Other>
  Aligned(const Aligned<Other>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* x, size_t) { ::operator delete(x, kAlignment); }
  template <class Other>
  bool operator==(const Aligned<Other>&) const {
    return true;
  }
  template <class Other>
  bool operator!=(const Aligned<Other>&) const {
    return false;
  }
};
template <class T>
using Buffer = std::vector<T, Aligned<T>>;

struct Sizes {
  int64_t batch, dim, length, dstate;
};

class Random {
 public:
  Buffer<float> normal(int64_t count, float mean = 0, float deviation = 1) {
    std::normal_distribution<float> draw(mean, deviation);
    Buffer<float> x(static_cast<size_t>(count));
    for (float& v : x) v = draw(engine_);
    return x;
  }

 private:
  std::mt19937 engine_{1};
};

/// What a trained Mamba feeds the scan: steps around 0.02, A = -1 ... -dstate. D, z, delta_bias, softplus.
struct Inputs {
  Sizes s;
  Buffer<float> u, delta, z, A, B, C, D, bias;

  explicit Inputs(Sizes sizes) : s(sizes) {
    Random random;
    const int64_t count = s.batch * s.dim * s.length;
    u = random.normal(count);
    delta = random.normal(count, 0, 0.5f);
    z = random.normal(count);
    B = random.normal(s.batch * s.dstate * s.length);
    C = random.normal(s.batch * s.dstate * s.length);
    D = random.normal(s.dim);
    bias = random.normal(s.dim, -4, 0.7f);
    A.resize(static_cast<size_t>(s.dim * s.dstate));
    for (size_t i = 0; i < A.size(); ++i) A[i] = -static_cast<float>(i % static_cast<size_t>(s.dstate) + 1);
  }
};

/// Activations in a type and a layout of their own.
template <class T>
struct Stored {
  Buffer<T> values;
  Activation view;

  Stored(Sizes s, const Buffer<float>& x, bool channel_last) : values(x.size()) {
    view = {values.data(), s.dim * s.length, channel_last ? 1 : s.length, channel_last ? s.dim : 1};
    for (int64_t b = 0, i = 0; b < s.batch; ++b) {
      for (int64_t d = 0; d < s.dim; ++d) {
        for (int64_t t = 0; t < s.length; ++t, ++i) {
          kernels::narrow(
              x[static_cast<size_t>(i)],
              values[static_cast<size_t>(b * view.batch_stride + d * view.dim_stride + t * view.length_stride)]);
        }
      }
    }
  }
};

template <class T>
constexpr ScalarType kType = std::is_same_v<T, float>              ? ScalarType::kFloat32
                             : std::is_same_v<T, kernels::Float16> ? ScalarType::kFloat16
                                                                   : ScalarType::kBFloat16;

template <class T>
class Scan {
 public:
  Scan(Sizes sizes, bool channel_last)
      : s(sizes),
        in(sizes),
        u(s, in.u, channel_last),
        delta(s, in.delta, channel_last),
        z(s, in.z, channel_last),
        out(s, Buffer<float>(in.u.size()), channel_last),
        dout(s, Random().normal(static_cast<int64_t>(in.u.size())), channel_last),
        du(out),
        ddelta(out),
        dz(out) {
    for (auto [from, to] : {std::pair{&in.B, &B}, std::pair{&in.C, &C}}) {
      to->resize(from->size());
      for (size_t i = 0; i < from->size(); ++i) kernels::narrow((*from)[i], (*to)[i]);
    }
    const int64_t slots = kernels::checkpoint_slots(s.length, int64_t{0});
    states.resize(static_cast<size_t>(s.batch * s.dim * s.dstate));
    dA = dinitial = states;
    dD.resize(static_cast<size_t>(s.batch * s.dim));
    dbias = dD;
    checkpoints.resize(static_cast<size_t>(s.batch * slots * s.dstate * s.dim));

    p.activation_type = kType<T>;
    p.delta_softplus = true;
    p.batch = p.sequences = s.batch;
    p.dim = s.dim;
    p.length = s.length;
    p.dstate = s.dstate;
    p.u = u.view;
    p.delta = delta.view;
    p.z = z.view;
    p.B = {B.data(), 1, s.dstate * s.length, s.dstate * s.length, s.length, 1, false, std::is_same_v<T, float>};
    p.C = p.B;
    p.C.data = C.data();
    p.A = in.A.data();
    p.D = in.D.data();
    p.delta_bias = in.bias.data();
    p.out = out.view;
    p.out.data = out.values.data();
    p.last_state = states.data();
    p.checkpoint_slots = slots;

    g.scan = p;
    g.scan.checkpoints = checkpoints.data();
    g.dout = dout.view;
    for (auto [stored, view] : {std::pair{&du, &g.du}, std::pair{&ddelta, &g.ddelta}, std::pair{&dz, &g.dz}}) {
      *view = stored->view;
      view->data = stored->values.data();
    }
    const auto sums = static_cast<size_t>(kernels::partial_sums(p, p.B) * s.batch * s.dstate * s.length);
    dB.resize(sums);
    dC.resize(sums);
    g.dA = dA.data();
    g.dB = dB.data();
    g.dC = dC.data();
    g.dD = dD.data();
    g.ddelta_bias = dbias.data();
    g.dinitial_state = dinitial.data();
  }

  void forward(bool with_checkpoints = false) {
    kernels::ScanParams params = p;
    if (with_checkpoints) params.checkpoints = checkpoints.data();
    cpu::forward(params, {0, cpu::forward_work(params)});
  }
  void backward() { cpu::backward(g, {0, cpu::backward_work(g)}); }
  void scalar() {
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t row = b * s.dim * s.length, coefficients = b * s.dstate * s.length;
      const ScalarScan scan{s.dim,
                            s.length,
                            s.dstate,
                            in.u.data() + row,
                            in.delta.data() + row,
                            in.A.data(),
                            in.B.data() + coefficients,
                            in.C.data() + coefficients,
                            in.D.data(),
                            in.z.data() + row,
                            in.bias.data(),
                            reinterpret_cast<float*>(out.values.data()) + row,
                            states.data() + b * s.dim * s.dstate};
      for (int64_t d = 0; d < s.dim; ++d) scan.channel(d);
    }
  }

 private:
  const Sizes s;
  const Inputs in;
  Stored<T> u, delta, z, out, dout, du, ddelta, dz;
  Buffer<T> B, C;
  Buffer<float> states, checkpoints, dA, dB, dC, dD, dbias, dinitial;
  kernels::ScanParams p;
  kernels::ScanGradParams g;
};

/// One step of `rows` rows, headless. D, z, dt_bias, softplus.
template <class T>
class Update {
 public:
  Update(int64_t rows_, int64_t dim_, int64_t dstate_) : rows(rows_), dim(dim_), dstate(dstate_) {
    Random random;
    x = random.normal(rows * dim);
    dt = random.normal(rows * dim, 0, 0.5f);
    z = random.normal(rows * dim);
    B = random.normal(rows * dstate);
    C = random.normal(rows * dstate);
    D = random.normal(dim);
    bias = random.normal(dim, -4, 0.7f);
    state = random.normal(rows * dim * dstate);
    A.resize(static_cast<size_t>(dim * dstate));
    for (size_t i = 0; i < A.size(); ++i) A[i] = -static_cast<float>(i % static_cast<size_t>(dstate) + 1);
    out.resize(x.size());
    stored_out.resize(x.size());
    for (auto [from, to] : {std::pair{&x, &stored_x}, std::pair{&dt, &stored_dt}, std::pair{&z, &stored_z},
                            std::pair{&B, &stored_B}, std::pair{&C, &stored_C}}) {
      to->resize(from->size());
      for (size_t i = 0; i < from->size(); ++i) kernels::narrow((*from)[i], (*to)[i]);
    }

    p.activation_type = kType<T>;
    p.dt_softplus = true;
    p.rows = p.slots = rows;
    p.heads = dim;
    p.dstate = dstate;
    p.state = {state.data(), dim * dstate, dstate, 0, 1};
    p.x = {stored_x.data(), dim, 1, 0};
    p.dt = {stored_dt.data(), dim, 1, 0};
    p.z = {stored_z.data(), dim, 1, 0};
    p.out = {stored_out.data(), dim, 1, 0};
    p.B = {stored_B.data(), 1, dstate, dstate, 1, std::is_same_v<T, float>};
    p.C = {stored_C.data(), 1, dstate, dstate, 1, std::is_same_v<T, float>};
    p.A = {A.data(), dstate, 0, 1};
    p.D = {D.data(), 1, 0, 0};
    p.dt_bias = {bias.data(), 1, 0, 0};
  }

  void update() { cpu::update(p, {0, cpu::update_work(p)}); }
  void scalar() {
    for (int64_t r = 0; r < rows; ++r) {
      const ScalarUpdate step{dim,
                              dstate,
                              state.data() + r * dim * dstate,
                              x.data() + r * dim,
                              dt.data() + r * dim,
                              A.data(),
                              B.data() + r * dstate,
                              C.data() + r * dstate,
                              D.data(),
                              z.data() + r * dim,
                              bias.data(),
                              out.data() + r * dim};
      for (int64_t d = 0; d < dim; ++d) step.channel(d);
    }
  }

 private:
  const int64_t rows, dim, dstate;
  Buffer<float> x, dt, z, A, B, C, D, bias, state, out;
  Buffer<T> stored_x, stored_dt, stored_z, stored_B, stored_C, stored_out;
  kernels::UpdateParams p;
};

}  // namespace mamba::benchmarks
