#include "cuda_scan_case.h"

#include <cmath>
#include <limits>
#include <random>

#include "cuda/task.h"
#include "cuda_memory.h"
#include "generic/cuda.h"
#include "generic/scan.h"
#include "mamba/kernels/config.h"
#include "mamba/kernels/scan.h"

namespace mamba::testing {

using namespace kernels;

namespace {

constexpr double kUnwritten = std::numeric_limits<double>::quiet_NaN();

template <class T>
T narrowed(double x) {
  T value;
  narrow(x, value);
  return value;
}

template <class F>
auto with_type(ScalarType type, F&& f) {
  if (type == ScalarType::kFloat16) return f(Float16());
  if (type == ScalarType::kBFloat16) return f(BFloat16());
  return f(float());
}

template <class To>
std::vector<To> converted(const std::vector<double>& from) {
  std::vector<To> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = narrowed<To>(from[i]);
  return to;
}
template <class From>
std::vector<double> widened(const std::vector<From>& from) {
  std::vector<double> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = widen(from[i]);
  return to;
}

/// The place of (outer, row, column) of a dense array of `outer` x `rows` x `columns` in a layout.
struct Strides {
  int64_t outer, row, column, offset, size;

  Strides(Layout layout, int64_t outer_count, int64_t rows, int64_t columns) {
    const int64_t pitch = layout == Layout::kPitched ? columns + 3 : columns;
    outer = rows * pitch, row = pitch, column = 1, offset = layout == Layout::kPitched ? 1 : 0;
    if (layout == Layout::kChannel) row = 1, column = rows;
    if (layout == Layout::kScattered) outer *= 2, row *= 2, column = 2;
    size = offset + outer_count * outer;
  }
};

/// An array on the device in some layout; what lies between its elements is NaN.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const std::vector<double>& values, Layout layout, int64_t outer, int64_t rows, int64_t columns)
      : strides(layout, outer, rows, columns), rows_(rows), columns_(columns), count_(outer * rows * columns) {
    std::vector<T> storage(static_cast<size_t>(strides.size), narrowed<T>(kUnwritten));
    for (int64_t i = 0; i < count_; ++i) {
      storage[place(i)] = narrowed<T>(values.empty() ? kUnwritten : values[static_cast<size_t>(i)]);
    }
    buffer_ = DeviceBuffer(storage);
  }
  T* data() const { return static_cast<T*>(buffer_.data()) + strides.offset; }
  Activation activation() const { return {data(), strides.outer, strides.row, strides.column}; }
  std::vector<double> to_host() const {
    const std::vector<T> storage = buffer_.to_host<T>();
    std::vector<double> values(static_cast<size_t>(count_));
    for (int64_t i = 0; i < count_; ++i) values[static_cast<size_t>(i)] = widen(storage[place(i)]);
    return values;
  }

  const Strides strides;

 private:
  size_t place(int64_t i) const {
    const int64_t column = i % columns_, row = i / columns_ % rows_, outer = i / columns_ / rows_;
    return static_cast<size_t>(strides.offset + outer * strides.outer + row * strides.row + column * strides.column);
  }

  int64_t rows_, columns_, count_;
  DeviceBuffer buffer_;
};

ScanParams sizes(const ScanCase& c) {
  ScanParams p;
  p.delta_softplus = c.softplus;
  p.reverse = c.reverse;
  p.batch = c.batch, p.dim = c.dim, p.length = c.length, p.dstate = c.dstate;
  p.sequences = c.sequences();
  p.checkpoint_slots = checkpoint_slots(p.length, c.cu_seqlens.empty() ? int64_t{0} : p.sequences);
  return p;
}

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

namespace {

/// A problem on the device.
template <class T>
struct DeviceProblem {
  ScanParams params;
  DeviceBuffer cu_seqlens;
  DeviceArray<T> u, delta, z, B, C, out;
  DeviceArray<float> A, D, bias, initial_state, last_state, checkpoints;

  DeviceProblem(const ScanCase& c, const ScanData& data, bool with_checkpoints)
      : params(sizes(c)),
        cu_seqlens(c.cu_seqlens),
        u(activation(c, c.activations, data.u)),
        delta(activation(c, c.activations, data.delta)),
        z(activation(c, c.gate, data.z)),
        B(data.B, c.coefficients, c.batch * c.B_groups, c.dstate, c.length),
        C(data.C, c.coefficients, c.batch * c.C_groups, c.dstate, c.length),
        out(activation(c, c.activations, c.cu_seqlens.empty() ? std::vector<double>() : zeros(data.u.size()))),
        A(dense(data.A)),
        D(dense(data.D)),
        bias(dense(data.bias)),
        initial_state(dense(data.initial_state)),
        last_state(dense(unwritten(params.sequences * c.dim * c.dstate))),
        checkpoints(dense(unwritten(c.batch * params.checkpoint_slots * c.dstate * c.dim))) {
    ScanParams& p = params;
    p.activation_type = c.type;
    p.cu_seqlens = c.cu_seqlens.empty() ? nullptr : static_cast<const int64_t*>(cu_seqlens.data());
    p.u = u.activation();
    p.delta = delta.activation();
    if (c.has_z) p.z = z.activation();
    p.B = coefficient(B, c.B_groups);
    p.C = coefficient(C, c.C_groups);
    p.A = A.data();
    p.D = c.has_D ? D.data() : nullptr;
    p.delta_bias = c.has_bias ? bias.data() : nullptr;
    p.initial_state = c.has_initial_state ? initial_state.data() : nullptr;
    p.out = out.activation();
    p.last_state = last_state.data();
    p.checkpoints = with_checkpoints ? checkpoints.data() : nullptr;
  }

  static DeviceArray<T> activation(const ScanCase& c, Layout layout, const std::vector<double>& values) {
    return DeviceArray<T>(values, layout, c.batch, c.dim, c.length);
  }
  static DeviceArray<float> dense(const std::vector<double>& values) {
    return DeviceArray<float>(values, Layout::kTime, 1, 1, static_cast<int64_t>(values.size()));
  }
  static std::vector<double> zeros(size_t count) { return std::vector<double>(count); }
  static std::vector<double> unwritten(int64_t count) {
    return std::vector<double>(static_cast<size_t>(count), kUnwritten);
  }
  static Coefficient coefficient(const DeviceArray<T>& x, int64_t groups) {
    const Strides& s = x.strides;
    return {x.data(), groups, groups * s.outer, s.outer, s.row, s.column, false, sizeof(T) == sizeof(float)};
  }
};

}  // namespace

ScanResult device_forward(const ScanCase& c, const ScanData& data, const KernelChoice& kernel, bool with_checkpoints) {
  return with_type(c.type, [&](auto type) -> ScanResult {
    using T = decltype(type);
    const DeviceProblem<T> problem(c, data, with_checkpoints);
    auto launch = [&] {
      switch (kernel.kind) {
        case KernelChoice::kGeneric:
          return generic::cuda::forward(problem.params, nullptr);
        case KernelChoice::kRegisters:
          return cuda::forward_registers<T>(problem.params, kernel.shape, nullptr);
        case KernelChoice::kLanes:
          return cuda::forward_lanes<T>(problem.params, {kernel.shape, kernel.warps}, nullptr);
        default:
          return cuda::forward(problem.params, nullptr);
      }
    };
    check(static_cast<cudaError_t>(launch()));
    check(cudaDeviceSynchronize());
    return {problem.out.to_host(), problem.last_state.to_host(), problem.checkpoints.to_host()};
  });
}

ScanGradients device_backward(const ScanCase& c, const ScanData& data, const KernelChoice& kernel, unsigned wanted) {
  return with_type(c.type, [&](auto type) -> ScanGradients {
    using T = decltype(type);
    using Problem = DeviceProblem<T>;
    const Problem problem(c, data, /*with_checkpoints=*/true);
    check(static_cast<cudaError_t>(cuda::forward(problem.params, nullptr)));
    const bool is_packed = !c.cu_seqlens.empty();
    auto gradient = [&](Layout layout) {
      return Problem::activation(c, layout, is_packed ? Problem::zeros(data.u.size()) : std::vector<double>());
    };
    auto unwritten = [&](int64_t count) { return Problem::dense(Problem::unwritten(count)); };
    const int64_t states = c.dim * c.dstate, steps = c.batch * c.dstate * c.length;
    const DeviceArray<T> dout = Problem::activation(c, c.activations, data.dout), du = gradient(c.activations),
                         ddelta = gradient(c.activations), dz = gradient(c.gate);
    const DeviceArray<float> dlast_state = Problem::dense(data.dlast_state), dA = unwritten(states),
                             dB = unwritten(steps * c.B_groups), dC = unwritten(steps * c.C_groups),
                             dD = unwritten(c.dim), ddelta_bias = unwritten(c.dim),
                             dinitial_state = unwritten(c.sequences() * states);
    ScanGradParams p;
    p.scan = problem.params;
    p.dout = dout.activation();
    p.dlast_state = dlast_state.data();
    if (wanted & kU) p.du = du.activation();
    if (wanted & kDelta) p.ddelta = ddelta.activation();
    if (c.has_z && (wanted & kZ)) p.dz = dz.activation();
    p.dA = wanted & kA ? dA.data() : nullptr;
    p.dB = wanted & kB ? dB.data() : nullptr;
    p.dC = wanted & kC ? dC.data() : nullptr;
    p.dD = wanted & kD ? dD.data() : nullptr;
    p.ddelta_bias = wanted & kBias ? ddelta_bias.data() : nullptr;
    p.dinitial_state = dinitial_state.data();

    const cuda::Machine machine;
    const bool is_chosen = kernel.kind == KernelChoice::kLanes;
    const auto plan = is_chosen ? cuda::backward_plan(p, machine, kernel.shape) : cuda::BackwardPlan();
    const int64_t bytes = kernel.kind == KernelChoice::kGeneric ? generic::cuda::backward_workspace(p)
                          : is_chosen                           ? plan.floats * int64_t{sizeof(float)}
                                                                : cuda::backward_workspace(p);
    const DeviceBuffer workspace(
        std::vector<float>(static_cast<size_t>(bytes) / sizeof(float), std::numeric_limits<float>::quiet_NaN()));
    check(static_cast<cudaError_t>(
        kernel.kind == KernelChoice::kGeneric ? generic::cuda::backward(p, workspace.data(), nullptr)
        : is_chosen ? cuda::backward_by_plan(p, plan, static_cast<float*>(workspace.data()), nullptr)
                    : cuda::backward(p, workspace.data(), nullptr)));
    check(cudaDeviceSynchronize());
    return {du.to_host(), ddelta.to_host(),      dz.to_host(),
            dA.to_host(), dB.to_host(),          dC.to_host(),
            dD.to_host(), ddelta_bias.to_host(), dinitial_state.to_host()};
  });
}

}  // namespace mamba::testing
