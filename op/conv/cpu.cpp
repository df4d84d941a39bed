// The convolution on the CPU.
#include "conv/backend.h"
#include "parallel.h"

namespace mamba::conv {

namespace {

namespace cpu = kernels::cpu;

struct Cpu {
  static void forward(const ConvArgs& args, const OutAndState& outputs) {
    const ConvPlan plan(args, outputs);
    const kernels::ConvParams& p = plan.params();
    parallel(cpu::conv_forward_work(p), p.length * p.width, [&](kernels::Range range) { cpu::conv_forward(p, range); });
  }

  static void backward(const ConvGradArgs& args, const GradientArray& gradients) {
    const ConvGradPlan plan(args, gradients, Sums::kPartial);
    const kernels::ConvGradParams& p = plan.params();
    const int64_t size = p.conv.length * p.conv.width;
    parallel(cpu::conv_dpre_work(p), size, [&](kernels::Range range) { cpu::conv_dpre(p, range); });
    parallel(cpu::conv_backward_work(p), size, [&](kernels::Range range) { cpu::conv_backward(p, range); });
    plan.finish(parallel_ordered_sum);
  }

  static void update(const ConvUpdateArgs& args, const Tensor& out) {
    const ConvUpdatePlan plan(args, out);
    const kernels::ConvUpdateParams& p = plan.params();
    parallel(cpu::conv_update_work(p), p.width, [&](kernels::Range range) { cpu::conv_update(p, range); });
  }
};

}  // namespace

}  // namespace mamba::conv

TORCH_LIBRARY_IMPL(mamba, CPU, m) {
  mamba::conv::Operators<mamba::conv::Cpu>::implement(m);
}
