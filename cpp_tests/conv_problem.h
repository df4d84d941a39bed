// A convolution in raw memory, and its float64 reference.
#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/buffers.h"
#include "mamba/kernels/conv.h"

namespace mamba::tests {

struct ConvCase {
  std::string name;
  int64_t batch = 2, dim = 5, length = 40, width = 4;
  std::vector<int64_t> cu_seqlens;  // empty: dense
  bool bias = true, silu = true, initial_state = true;

  bool is_packed() const { return !cu_seqlens.empty(); }
  int64_t sequences() const { return is_packed() ? static_cast<int64_t>(cu_seqlens.size()) - 1 : batch; }
};
inline std::ostream& operator<<(std::ostream& out, const ConvCase& c) {
  return out << c.name;
}

class ConvProblem {
 public:
  ConvProblem(const ConvCase& conv_case, ScalarType activation_type, Layout layout)
      : c(conv_case), type(activation_type) {
    const std::array<int64_t, 4> activations = {c.batch, c.dim, 1, c.length};
    const std::array<int64_t, 4> states = {c.sequences(), c.dim, 1, c.width - 1};
    Random random(3);
    const auto fill = [&](View& view, ScalarType element, std::array<int64_t, 4> sizes, Layout as) {
      view = View(element, false, sizes, as);
      view.write(random.normals(view.count(), false));
    };
    fill(x, type, activations, layout);
    fill(dout, type, activations, layout);
    fill(weight, wide(type), {1, c.dim, 1, c.width}, Layout::kContiguous);
    if (c.bias) fill(bias, wide(type), {1, 1, 1, c.dim}, Layout::kContiguous);
    if (c.initial_state) fill(initial_state, type, states, Layout::kContiguous);
    fill(dlast_state, type, states, Layout::kContiguous);
    for (View* view : {&out, &dx}) {
      *view = View(type, false, activations, layout);
      if (c.is_packed()) view->fill(0);
    }
    for (View* view : {&last_state, &dinitial_state}) *view = View(type, false, states, Layout::kContiguous);
    dweight = View(wide(type), false, {1, c.dim, 1, c.width}, Layout::kContiguous);
    dbias = View(wide(type), false, {1, 1, 1, c.dim}, Layout::kContiguous);
    if (c.is_packed()) {
      cu_seqlens_ = Array(ScalarType::kFloat64, false, c.sequences() + 1);
      std::memcpy(cu_seqlens_.bytes.data(), c.cu_seqlens.data(), cu_seqlens_.bytes.size());
    }
  }

  std::vector<Array*> arrays() {
    std::vector<Array*> all = {&cu_seqlens_};
    for (View* view : {&x, &dout, &weight, &bias, &initial_state, &dlast_state, &out, &last_state, &dx, &dinitial_state,
                       &dweight, &dbias}) {
      all.push_back(&view->array);
    }
    return all;
  }
  std::vector<const View*> results() const { return {&out, &last_state, &dx, &dinitial_state, &dweight, &dbias}; }

  kernels::ConvParams params(const Place& place) const {
    kernels::ConvParams p;
    p.activation_type = type;
    p.silu = c.silu;
    p.batch = c.batch;
    p.dim = c.dim;
    p.length = c.length;
    p.width = c.width;
    p.sequences = c.sequences();
    p.cu_seqlens = static_cast<const int64_t*>(place(cu_seqlens_));
    p.weight = place(weight.array);
    p.bias = place(bias.array);
    p.x = activation(x, place);
    p.out = activation(out, place);
    p.initial_state = activation(initial_state, place);
    p.last_state = activation(last_state, place);
    return p;
  }
  kernels::ConvGradParams grad_params(const Place& place) const {
    kernels::ConvGradParams g;
    g.conv = params(place);
    g.dout = activation(dout, place);
    g.dlast_state = activation(dlast_state, place);
    g.dx = activation(dx, place);
    g.dinitial_state = activation(dinitial_state, place);
    g.dweight = place(dweight.array);
    g.dbias = place(dbias.array);
    return g;
  }

  /// What results() should hold.
  std::vector<Numbers> reference() const {
    const Numbers xs = x.numbers(), douts = dout.numbers(), weights = weight.numbers(), biases = bias.numbers(),
                  states = initial_state.numbers(), dlast = dlast_state.numbers();
    const auto zeros = [](const View& view) { return Numbers(static_cast<size_t>(view.count())); };
    std::vector<Numbers> r = {zeros(out),     zeros(last_state), zeros(dx), zeros(dinitial_state),
                              zeros(dweight), zeros(dbias)};
    const int64_t before = c.width - 1;
    for (int64_t s = 0; s < c.sequences(); ++s) {
      const int64_t row = c.is_packed() ? 0 : s, start = c.is_packed() ? c.cu_seqlens[static_cast<size_t>(s)] : 0;
      const int64_t steps = (c.is_packed() ? c.cu_seqlens[static_cast<size_t>(s) + 1] : c.length) - start;
      for (int64_t d = 0; d < c.dim; ++d) {
        const auto at = [&](int64_t t) { return static_cast<size_t>((row * c.dim + d) * c.length + start + t); };
        const auto state_at = [&](int64_t i) { return static_cast<size_t>((s * c.dim + d) * before + i); };
        const auto tap_at = [&](int64_t k) { return static_cast<size_t>(d * c.width + k); };
        std::vector<double> seen, dseen(static_cast<size_t>(before + steps));
        for (int64_t i = 0; i < before; ++i) seen.push_back(c.initial_state ? states[state_at(i)].real() : 0);
        for (int64_t t = 0; t < steps; ++t) seen.push_back(xs[at(t)].real());
        for (int64_t t = 0; t < steps; ++t) {
          double pre = c.bias ? biases[static_cast<size_t>(d)].real() : 0;
          for (int64_t k = 0; k < c.width; ++k) pre += weights[tap_at(k)].real() * seen[static_cast<size_t>(t + k)];
          const double sigmoid = 1 / (1 + std::exp(-pre));
          r[0][at(t)] = c.silu ? pre * sigmoid : pre;
          const double dpre = douts[at(t)].real() * (c.silu ? sigmoid * (1 + pre * (1 - sigmoid)) : 1);
          r[5][static_cast<size_t>(d)] += dpre;
          for (int64_t k = 0; k < c.width; ++k) {
            r[4][tap_at(k)] += dpre * seen[static_cast<size_t>(t + k)];
            dseen[static_cast<size_t>(t + k)] += dpre * weights[tap_at(k)].real();
          }
        }
        for (int64_t i = 0; i < before; ++i) {
          r[1][state_at(i)] = seen[static_cast<size_t>(steps + i)];
          dseen[static_cast<size_t>(steps + i)] += dlast[state_at(i)].real();
        }
        for (int64_t i = 0; i < before; ++i) r[3][state_at(i)] = dseen[static_cast<size_t>(i)];
        for (int64_t t = 0; t < steps; ++t) r[2][at(t)] = dseen[static_cast<size_t>(before + t)];
      }
    }
    return r;
  }

  static kernels::Activation activation(const View& view, const Place& place) {
    if (!view.is_defined()) return {};
    const int64_t size = static_cast<int64_t>(view.array.bytes.size()) / view.array.count();
    return {static_cast<std::byte*>(place(view.array)) + view.offset * size, view.strides[0], view.strides[1],
            view.strides[3]};
  }

  const ConvCase c;
  const ScalarType type;
  View x, dout, weight, bias, initial_state, dlast_state;
  View out, last_state, dx, dinitial_state, dweight, dbias;

 private:
  Array cu_seqlens_;  // int64, in the memory of float64 elements
};

}  // namespace mamba::tests
