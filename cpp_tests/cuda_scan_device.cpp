#include "cuda/task.h"
#include "cuda_memory.h"
#include "cuda_scan_case.h"
#include "cuda_scan_values.h"
#include "generic/cuda.h"
#include "mamba/kernels/scan.h"

namespace mamba::testing {

using namespace kernels;

namespace {

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

/// Scratch memory full of NaN.
DeviceBuffer workspace(int64_t bytes) {
  return DeviceBuffer(
      std::vector<float>(static_cast<size_t>(bytes) / sizeof(float), std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace

ScanResult device_forward(const ScanCase& c, const ScanData& data, const KernelChoice& kernel, bool with_checkpoints) {
  return with_type(c.type, [&](auto type) -> ScanResult {
    using T = decltype(type);
    const DeviceProblem<T> problem(c, data, with_checkpoints);
    ScanParams p = problem.params;
    const cuda::ForwardPlan plan = kernel.kind == KernelChoice::kRegisters
                                       ? cuda::register_plan(p, kernel.shape, kernel.chunk_steps)
                                       : cuda::lane_plan(kernel.shape, kernel.groups);
    const bool is_chosen = kernel.kind == KernelChoice::kRegisters || kernel.kind == KernelChoice::kLanes;
    const DeviceBuffer carries = workspace(is_chosen ? plan.floats * int64_t{sizeof(float)} : cuda::carries_size(p));
    p.carries = carries.data();
    auto launch = [&] {
      if (kernel.kind == KernelChoice::kGeneric) return generic::cuda::forward(p, nullptr);
      return is_chosen ? cuda::forward_by_plan(p, plan, nullptr) : cuda::forward(p, nullptr);
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
    ScanParams scan = problem.params;
    const DeviceBuffer carries = workspace(cuda::carries_size(scan));
    scan.carries = carries.data();
    check(static_cast<cudaError_t>(cuda::forward(scan, nullptr)));
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
    p.scan = scan;
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
    const auto plan =
        is_chosen ? cuda::backward_plan(p, machine, {kernel.shape, kernel.chunk_steps}) : cuda::BackwardPlan();
    const int64_t bytes = kernel.kind == KernelChoice::kGeneric ? generic::cuda::backward_workspace(p)
                          : is_chosen                           ? plan.floats * int64_t{sizeof(float)}
                                                                : cuda::backward_workspace(p);
    const DeviceBuffer sums = workspace(bytes);
    check(static_cast<cudaError_t>(
        kernel.kind == KernelChoice::kGeneric ? generic::cuda::backward(p, sums.data(), nullptr)
        : is_chosen ? cuda::backward_by_plan(p, plan, static_cast<float*>(sums.data()), nullptr)
                    : cuda::backward(p, sums.data(), nullptr)));
    check(cudaDeviceSynchronize());
    return {du.to_host(), ddelta.to_host(),      dz.to_host(),
            dA.to_host(), dB.to_host(),          dC.to_host(),
            dD.to_host(), ddelta_bias.to_host(), dinitial_state.to_host()};
  });
}

}  // namespace mamba::testing
