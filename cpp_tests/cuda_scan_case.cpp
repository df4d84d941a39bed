#include "cuda_scan_case.h"

#include <cmath>
#include <random>

#include "cuda_scan_values.h"
#include "generic/scan.h"

namespace mamba::testing {

using namespace kernels;

namespace {

/// Dense arrays on the host in one precision, and the params that point into them.
template <class Real>
struct HostProblem {
  ScanParams params;
  std::vector<std::vector<Real>> arrays;

  Real* keep(const std::vector<double>& values, bool is_given = true) {
    if (!is_given) return nullptr;
    arrays.push_back(converted<Real>(values));
    return arrays.back().data();
  }
  Real* fill(int64_t count, double value) { return keep(std::vector<double>(static_cast<size_t>(count), value)); }
  Activation activation(const ScanCase& c, Real* data) const { return {data, c.dim * c.length, c.length, 1}; }

  HostProblem(const ScanCase& c, const ScanData& data) : params(sizes(c)) {
    arrays.reserve(32);
    ScanParams& p = params;
    p.cu_seqlens = c.cu_seqlens.empty() ? nullptr : c.cu_seqlens.data();
    p.u = activation(c, keep(data.u));
    p.delta = activation(c, keep(data.delta));
    if (c.has_z) p.z = activation(c, keep(data.z));
    p.B = coefficient(c, keep(data.B), c.B_groups);
    p.C = coefficient(c, keep(data.C), c.C_groups);
    p.A = keep(data.A);
    p.D = keep(data.D, c.has_D);
    p.delta_bias = keep(data.bias, c.has_bias);
    p.initial_state = keep(data.initial_state, c.has_initial_state);
    p.out = activation(c, fill(c.batch * c.dim * c.length, 0));
    p.last_state = fill(p.sequences * c.dim * c.dstate, 0);
    p.checkpoints = fill(c.batch * p.checkpoint_slots * c.dstate * c.dim, kUnwritten);
    for (int64_t i = 0; i < p.sequences * c.dim; ++i) generic::forward<Real, Real>(p, i / c.dim, i % c.dim);
  }
  std::vector<double> values(const void* data) const {
    for (const auto& array : arrays) {
      if (array.data() == data) return widened(array);
    }
    return {};
  }

 private:
  static Coefficient coefficient(const ScanCase& c, const Real* data, int64_t groups) {
    return {data, groups, groups * c.dstate * c.length, c.dstate * c.length, c.length, 1, false, true};
  }
};

template <class Real>
ScanResult reference_forward(const ScanCase& c, const ScanData& data) {
  const HostProblem<Real> problem(c, data);
  const ScanParams& p = problem.params;
  return {problem.values(p.out.data), problem.values(p.last_state), problem.values(p.checkpoints)};
}

template <class Real>
ScanGradients reference_backward(const ScanCase& c, const ScanData& data) {
  HostProblem<Real> problem(c, data);
  ScanGradParams p;
  p.scan = problem.params;
  auto zeros = [&](int64_t count) { return problem.fill(count, 0); };
  const int64_t states = p.scan.sequences * c.dim * c.dstate, activations = c.batch * c.dim * c.length;
  // One block a group of channels, so that there is one partial sum of dB and dC.
  ChannelBlocks blocks;
  blocks.unit = greatest_common_divisor(c.dim / c.B_groups, c.dim / c.C_groups);
  blocks.width = 1, blocks.per_unit = blocks.unit, blocks.count = c.dim;
  const int64_t B_slices = blocks.slices(c.dim / c.B_groups), C_slices = blocks.slices(c.dim / c.C_groups);
  const int64_t B_count = c.batch * c.B_groups * c.dstate * c.length;
  const int64_t C_count = c.batch * c.C_groups * c.dstate * c.length;
  p.dout = problem.activation(c, problem.keep(data.dout));
  p.dlast_state = problem.keep(data.dlast_state);
  p.du = problem.activation(c, zeros(activations));
  p.ddelta = problem.activation(c, zeros(activations));
  if (c.has_z) p.dz = problem.activation(c, zeros(activations));
  p.dA = zeros(states);
  p.dB = zeros(B_slices * B_count);
  p.dC = zeros(C_slices * C_count);
  p.dD = zeros(p.scan.sequences * c.dim);
  p.ddelta_bias = zeros(p.scan.sequences * c.dim);
  p.dinitial_state = zeros(states);
  for (int64_t i = 0; i < p.scan.sequences * c.dim; ++i) {
    generic::backward<Real, Real>(p, blocks, i / c.dim, i % c.dim);
  }
  auto summed = [&](const void* sums, int64_t count) {
    const std::vector<double> partial = problem.values(sums);
    std::vector<double> total(static_cast<size_t>(count));
    for (size_t i = 0; i < partial.size(); ++i) total[i % total.size()] += partial[i];
    return total;
  };
  return {problem.values(p.du.data),
          problem.values(p.ddelta.data),
          problem.values(p.dz.data),
          summed(p.dA, c.dim * c.dstate),
          summed(p.dB, B_count),
          summed(p.dC, C_count),
          summed(p.dD, c.dim),
          summed(p.ddelta_bias, c.dim),
          problem.values(p.dinitial_state)};
}

}  // namespace

ScanData make_data(const ScanCase& c, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(c.least_A, c.greatest_A);
  const int64_t activations = c.batch * c.dim * c.length, states = c.sequences() * c.dim * c.dstate;
  auto draw = [&](int64_t count, bool is_activation, auto&& next) {
    std::vector<double> values(static_cast<size_t>(count));
    for (double& x : values) {
      x = static_cast<float>(next());
      if (is_activation) x = with_type(c.type, [&](auto t) { return double(widen(narrowed<decltype(t)>(x))); });
    }
    return values;
  };
  auto standard = [&] { return normal(generator); };
  auto step = [&] { return c.softplus ? normal(generator) + c.step_shift : std::abs(normal(generator)) * 0.3; };
  ScanData data;
  data.u = draw(activations, true, standard);
  data.delta = draw(activations, true, step);
  data.z = draw(activations, true, standard);
  data.B = draw(c.batch * c.B_groups * c.dstate * c.length, true, standard);
  data.C = draw(c.batch * c.C_groups * c.dstate * c.length, true, standard);
  data.A = draw(c.dim * c.dstate, false, [&] { return uniform(generator); });
  data.D = draw(c.dim, false, standard);
  data.bias = draw(c.dim, false, [&] { return 0.3 * std::abs(normal(generator)); });
  data.initial_state = draw(states, false, standard);
  data.dout = draw(activations, true, standard);
  data.dlast_state = draw(states, false, standard);
  return data;
}

ScanResult reference_forward(const ScanCase& c, const ScanData& data, bool in_single_precision) {
  return in_single_precision ? reference_forward<float>(c, data) : reference_forward<double>(c, data);
}

ScanGradients reference_backward(const ScanCase& c, const ScanData& data, bool in_single_precision) {
  return in_single_precision ? reference_backward<float>(c, data) : reference_backward<double>(c, data);
}

}  // namespace mamba::testing
