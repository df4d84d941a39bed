// From the convolution's arguments to what its kernels need.
#pragma once

#include "../plan.h"
#include "conv/conv_arguments.h"
#include "mamba/kernels/conv.h"

namespace mamba::conv {

/// out like x, and last_state (batch or sequences, dim, width - 1), alike for real and meta tensors.
OutAndState allocate_outputs(const ConvArgs& args);

/// Each gradient that the mask asks for like its argument; empty tensors for the others.
GradientArray allocate_gradients(const ConvGradArgs& args);

/// Holds the tensors that the params point into.
class ConvPlan {
 public:
  ConvPlan(const ConvArgs& args, const OutAndState& outputs);
  const kernels::ConvParams& params() const { return params_; }

 private:
  ConvArgs args_;
  kernels::ConvParams params_;
};

class ConvGradPlan {
 public:
  ConvGradPlan(const ConvGradArgs& args, const GradientArray& gradients, Sums form);
  const kernels::ConvGradParams& params() const { return params_; }

  /// Calls ordered_sum(partial, total) for the sums over several sequences, and writes the parameters' gradients.
  template <class OrderedSum>
  void finish(OrderedSum&& ordered_sum) const {
    for (const auto& [gradient, partial] : sums_) {
      Tensor total = partial.size(0) == 1 ? partial.select(0, 0) : total_of(partial);
      if (partial.size(0) != 1 && total.numel() > 0) ordered_sum(partial, total);
      gradients_[gradient].copy_(total);
    }
  }
  /// The same where the sums are whole.
  void finish() const {
    for (const auto& [gradient, whole] : sums_) gradients_[gradient].copy_(whole.select(0, 0));
  }

 private:
  void* sums(Gradient gradient, Sums form, c10::IntArrayRef shape);
  static Tensor total_of(const Tensor& partial);

  ConvPlan conv_;
  GradientArray gradients_;
  Tensor dout_, dlast_state_, dpre_;
  std::vector<std::pair<Gradient, Tensor>> sums_;
  kernels::ConvGradParams params_;
};

class ConvUpdatePlan {
 public:
  ConvUpdatePlan(const ConvUpdateArgs& args, const Tensor& out);
  const kernels::ConvUpdateParams& params() const { return params_; }

 private:
  Tensor weight_, bias_;  // as the kernels want them
  kernels::ConvUpdateParams params_;
};

}  // namespace mamba::conv
