// The CPU kernels.
#include "backend.h"
#include "parallel.h"

namespace mamba {

namespace {

namespace cpu = kernels::cpu;

struct Cpu {
  static void forward(const ScanArgs& args, const ScanOutputs& outputs) {
    const ScanPlan plan(args, outputs);
    const kernels::ScanParams& p = plan.params();
    parallel(cpu::forward_work(p), p.length * p.dstate, [&](kernels::Range range) { cpu::forward(p, range); });
  }

  static void backward(const ScanGradArgs& args, const GradientArray& gradients) {
    ScanGradPlan plan(args, gradients, Sums::kPartial);
    const kernels::ScanGradParams& p = plan.params();
    parallel(cpu::backward_work(p), p.scan.length * p.scan.dstate,
             [&](kernels::Range range) { cpu::backward(p, range); });
    plan.finish(parallel_ordered_sum);
  }

  static void update(const UpdateArgs& args, const Tensor& out) {
    const UpdatePlan plan(args, out);
    const kernels::UpdateParams& p = plan.params();
    parallel(cpu::update_work(p), p.dstate, [&](kernels::Range range) { cpu::update(p, range); });
  }
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, CPU, m) {
  mamba::Operators<mamba::Cpu>::implement(m);
}
