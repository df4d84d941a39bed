// From arguments to what a kernel needs: one straight line of shape, outputs and params for every dispatch key.
#pragma once

#include <vector>

#include "arguments.h"
#include "mamba/kernels/params.h"

namespace mamba {

/// The outputs of a forward, allocated alike for real and meta tensors.
struct ScanOutputs {
  Tensor out;         // like u
  Tensor last_state;  // (batch or sequences, dim, dstate)
  // (batch, slots x dstate, dim); undefined unless asked for. Slots are no dimension of their own: a graph with dynamic
  // sizes would be specialised on whether there is one.
  Tensor checkpoints;
};
ScanOutputs allocate_outputs(const ScanArgs& args, bool with_checkpoints);

/// The gradients that the mask asks for, each like its argument; empty tensors for the others.
GradientArray allocate_gradients(const ScanGradArgs& args);

/// The arguments of a scan as kernels take them: parameters wide and contiguous, A (dim, dstate), B and C
/// (batch, groups, dstate, length) or (dim, dstate). Holds the tensors that the params point into.
class ScanPlan {
 public:
  ScanPlan(const ScanArgs& args, const ScanOutputs& outputs);

  const kernels::ScanParams& params() const { return params_; }

 private:
  kernels::Coefficient coefficient(Tensor& x) const;

  ScanArgs args_;
  ScanOutputs outputs_;
  kernels::ScanParams params_;
};

/// How a backend's kernels leave the gradients that are sums over batches or channels.
enum class Sums {
  kPartial,  // zeroed before, to be added in order
  kWhole,    // every element written, straight into the gradient where its type and layout are the kernel's
};

/// The arguments, gradients and sums of a backward.
class ScanGradPlan {
 public:
  ScanGradPlan(const ScanGradArgs& args, const GradientArray& gradients, Sums sums);

  const kernels::ScanGradParams& params() const { return params_; }

  /// Calls ordered_sum(partial, total) for every sum that is not a single one, and writes the gradients that the
  /// kernel left in its own dtype and layout.
  template <class OrderedSum>
  void finish(OrderedSum&& ordered_sum);
  /// The same where the sums are whole.
  void finish();

  /// A gradient that comes as partial sums along the first dimension.
  struct Sum {
    Gradient gradient;
    Tensor partial;
  };

 private:
  /// Whether a gradient is of the type and the layout in which kernels leave it.
  static bool is_own(const Tensor& gradient, at::ScalarType type);
  /// Zeros for partial sums, else memory that the kernel will write.
  Tensor prepared(c10::IntArrayRef shape, at::ScalarType type) const;
  void* sums(Gradient gradient, int64_t partials, c10::IntArrayRef shape, at::ScalarType type);
  void* coefficient_sums(Gradient gradient, const kernels::Coefficient& x);
  void write(Gradient gradient, const Tensor& value) const;

  ScanPlan scan_;
  at::ScalarType state_type_;
  Sums form_;
  GradientArray gradients_;
  Tensor dout_, dlast_state_, dinitial_state_;
  std::vector<Sum> sums_;
  kernels::ScanGradParams params_;
};

/// A decoding step. Copies nothing where the dtypes are the kernel's.
class UpdatePlan {
 public:
  UpdatePlan(const UpdateArgs& args, const Tensor& out);

  const kernels::UpdateParams& params() const { return params_; }

 private:
  Tensor A_, B_, C_, D_, dt_bias_;  // those that had another dtype
  kernels::UpdateParams params_;
};

template <class OrderedSum>
void ScanGradPlan::finish(OrderedSum&& ordered_sum) {
  for (const Sum& sum : sums_) {
    if (sum.partial.size(0) == 1) {
      write(sum.gradient, sum.partial.select(0, 0));
      continue;
    }
    const Tensor& gradient = gradients_[sum.gradient];
    const bool in_place = is_own(gradient, sum.partial.scalar_type());
    const Tensor total = in_place ? gradient : prepared(sum.partial.sizes().slice(1), sum.partial.scalar_type());
    if (total.numel() > 0) ordered_sum(sum.partial, total);
    if (!in_place) write(sum.gradient, total);
  }
  if (gradients_[kInitialState].numel() > 0) write(kInitialState, dinitial_state_);
}

}  // namespace mamba
