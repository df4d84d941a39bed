// A scan problem in raw memory: what the kernels are given, and what they made of it.
#pragma once

#include <string>

#include "kernels/buffers.h"
#include "mamba/kernels/config.h"
#include "mamba/kernels/scan.h"

namespace mamba::tests {

class ScanProblem {
 public:
  ScanProblem(const Case& c, ScalarType type, Layout layout, uint64_t seed = 1);
  /// The same numbers, rounded to the type.
  ScanProblem(const Case& c, ScalarType type, Layout layout, const ScanValues& numbers, const ScanResult& weights);

  /// With the outputs of a forward, which writes checkpoints unless told otherwise.
  kernels::ScanParams forward_params(const Place& place, bool with_checkpoints = true) const;
  /// As the operator passes them: without out and last_state.
  kernels::ScanGradParams backward_params(const Place& place) const;

  /// As the caller of a kernel leaves them: zero where the kernel adds or does not write, else NaN.
  void reset_outputs();

  /// All memory, to be mirrored on a device.
  std::vector<Array*> arrays();
  Array& cu_seqlens() { return cu_seqlens_; }
  /// The memory that kernels write.
  std::vector<const Array*> written() const;

  ScanResult result() const { return {out.numbers(), last_state.numbers()}; }
  /// The gradients of the inputs: partial sums added up, in order.
  ScanValues gradients() const;
  bool is_clean() const;

  const Case c;
  const ScalarType type, wide_type;
  ScanValues values;      // as stored: rounded
  ScanResult cotangents;  // likewise

  View u, delta, z, B, C, out, dout, du, ddelta, dz;
  Array A, D, delta_bias, initial_state, last_state, checkpoints, dlast_state;
  Array dA, dB, dC, dD, ddelta_bias, dinitial_state;

 private:
  kernels::ScanParams inputs(const Place& place) const;
  kernels::Coefficient coefficient(const CoefficientForm& form, const View& x, const Place& place) const;
  View make_coefficient(const CoefficientForm& form, const Numbers& x, Layout layout) const;
  ScalarType coefficient_type(const CoefficientForm& form) const { return is_state_type(form) ? wide_type : type; }
  bool is_state_type(const CoefficientForm& form) const {
    return form.form == Form::kConstant || (c.is_complex() ? !form.is_real : type == wide_type);
  }
  int64_t coefficient_gradients(const CoefficientForm& form, const View& x) const;

  Array cu_seqlens_;  // int64, in the memory of float64 elements
};

/// One of the families of kernels on the CPU.
struct CpuKernels {
  const char* name;
  int64_t (*forward_work)(const kernels::ScanParams&);
  void (*forward)(const kernels::ScanParams&, kernels::Range);
  int64_t (*backward_work)(const kernels::ScanGradParams&);
  void (*backward)(const kernels::ScanGradParams&, kernels::Range);
};
/// Those that the operators call.
constexpr CpuKernels kCpuKernels = {"chosen", kernels::cpu::forward_work, kernels::cpu::forward,
                                    kernels::cpu::backward_work, kernels::cpu::backward};

/// What the kernels compute from a whole problem.
void run_forward(ScanProblem& problem, bool with_checkpoints = true, const CpuKernels& kernels = kCpuKernels);
void run_backward(ScanProblem& problem, const CpuKernels& kernels = kCpuKernels);

/// For results that were accumulated in the type's wide type from the very numbers of the reference, and rounded once.
Tolerance result_tolerance(ScalarType type);
Tolerance gradient_tolerance(ScalarType type);
/// Of two types the one that decides how exact a result can be.
ScalarType coarser(ScalarType x, ScalarType y);

std::string name_of(const Case& c, ScalarType type, Layout layout);

}  // namespace mamba::tests
