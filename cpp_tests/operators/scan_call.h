// The operators' arguments as tensors, made from the case table, and the oracle: a float64 loop over time in plain
// tensor operators, differentiable, which shares nothing with the kernels.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "case_table.h"

namespace mamba::tests {

using at::Tensor;

/// Where a test runs and in which activation dtype.
struct Target {
  at::DeviceType device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
};
std::string name_of(const Target& target);
std::string name_of(at::ScalarType dtype);
std::ostream& operator<<(std::ostream& out, const Target& target);

std::vector<Target> cpu_targets();
std::vector<Target> cuda_targets();

bool has_device(const Target& target);
#define MAMBA_SKIP_WITHOUT_DEVICE(target) \
  if (!has_device(target)) GTEST_SKIP() << "no CUDA device for this torch"

/// Absent arguments are undefined.
struct ScanCall {
  Tensor u, delta, A, B, C, D, z, delta_bias;
  bool delta_softplus = false;
  Tensor initial_state, cu_seqlens;
  bool reverse = false;

  /// The arguments that have gradients, with their names, in schema order.
  std::array<std::pair<const char*, Tensor*>, 9> differentiable();
  /// Every tensor changed by f.
  template <class F>
  ScanCall with(F&& f) const;
  ScanCall to(at::Device device) const {
    return with([&](const Tensor& x) { return x.to(device); });
  }
  /// In schema order, as the dispatcher takes them.
  std::vector<c10::IValue> values() const;
};

/// The same numbers for every target, rounded to its dtype. Parameters are float32, float64 for float64 activations, or
/// as told.
ScanCall make_call(const Case& c, const Target& target, uint64_t seed = 1);
ScanCall make_call(const Case& c, const Target& target, uint64_t seed, at::ScalarType parameter_dtype);
/// A case of the table.
const Case& case_named(const std::string& name);

using OutAndState = std::tuple<Tensor, Tensor>;

/// Through the public C++ functions: selective_scan_with_state, and selective_scan.
OutAndState run(const ScanCall& call);
Tensor run_scan(const ScanCall& call);
/// On the CPU, wherever the call is.
/// On the CPU, wherever the call is.
OutAndState oracle(const ScanCall& call);

/// Any operator by its name.
std::vector<c10::IValue> call_by_name(const std::string& name, std::vector<c10::IValue> arguments);

/// For each differentiable argument the gradient of a fixed weighted sum of out and last_state; undefined for absent
/// arguments, zeros where nothing depends on it.
std::vector<Tensor> gradients(ScanCall call, OutAndState (*function)(const ScanCall&));
/// The call in float64, detached: what the oracle differentiates.
ScanCall widened(const ScanCall& call);

/// Relative tolerance, and absolute as a share of the largest expected magnitude, or of one.
struct Closeness {
  double relative, share;
};
Closeness result_closeness(at::ScalarType dtype);
Closeness gradient_closeness(at::ScalarType dtype);
testing::AssertionResult is_close(const Tensor& actual, const Tensor& expected, Closeness closeness);
testing::AssertionResult has_bits_of(const Tensor& actual, const Tensor& expected);

template <class F>
ScanCall ScanCall::with(F&& f) const {
  ScanCall changed = *this;
  for (Tensor* x : {&changed.u, &changed.delta, &changed.A, &changed.B, &changed.C, &changed.D, &changed.z,
                    &changed.delta_bias, &changed.initial_state, &changed.cu_seqlens}) {
    if (x->defined()) *x = f(*x);
  }
  return changed;
}

}  // namespace mamba::tests
