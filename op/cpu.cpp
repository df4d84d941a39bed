// The CPU kernels.
#include <ATen/ops/empty.h>

#include "backend.h"
#include "parallel.h"

namespace mamba {

namespace {

namespace cpu = kernels::cpu;

/// Runs a vectorised kernel over all of its work, which costs so many state updates, each far less than a scalar one.
template <class Kernel>
void share(int64_t work, int64_t updates, Kernel&& kernel) {
  constexpr int64_t kSpeedup = 8;
  parallel(work, updates / kSpeedup / std::max<int64_t>(1, work), kernel);
}

int64_t updates(const kernels::ScanParams& p) {
  return p.batch * p.dim * p.length * p.dstate;
}

struct Cpu {
  static void forward(const ScanArgs& args, const ScanOutputs& outputs) {
    const ScanPlan plan(args, outputs);
    kernels::ScanParams p = plan.params();
    Tensor carries;
    if (const int64_t size = cpu::carries_size(p)) {
      carries = at::empty({size}, args.u.options().dtype(at::kByte));
      p.carries = carries.mutable_data_ptr();
      share(cpu::carry_work(p), updates(p), [&](kernels::Range range) { cpu::carry(p, range); });
    }
    share(cpu::forward_work(p), updates(p), [&](kernels::Range range) { cpu::forward(p, range); });
  }

  static void backward(const ScanGradArgs& args, const GradientArray& gradients) {
    ScanGradPlan plan(args, gradients, Sums::kPartial);
    const kernels::ScanGradParams& p = plan.params();
    share(cpu::backward_work(p), updates(p.scan), [&](kernels::Range range) { cpu::backward(p, range); });
    plan.finish(parallel_ordered_sum);
  }

  static void update(const UpdateArgs& args, const Tensor& out) {
    const UpdatePlan plan(args, out);
    const kernels::UpdateParams& p = plan.params();
    share(cpu::update_work(p), p.rows * p.heads * p.head_dim * p.dstate,
          [&](kernels::Range range) { cpu::update(p, range); });
  }
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, CPU, m) {
  mamba::Operators<mamba::Cpu>::implement(m);
}
