// The CPU kernels, shared between torch's threads.
#include <ATen/Parallel.h>

#include <algorithm>

#include "backend.h"
#include "mamba/kernels/scan.h"

namespace mamba {

namespace {

namespace cpu = kernels::cpu;

/// Runs kernel(range) over all of the work, in parallel; the whole of it costs so many state updates.
template <class Kernel>
void parallel(int64_t work, int64_t updates, Kernel&& kernel) {
  constexpr int64_t kWorthAThread = 16384;
  const int64_t size = std::max<int64_t>(1, updates / std::max<int64_t>(1, work));
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / size);
  at::parallel_for(0, work, grain, [&](int64_t begin, int64_t end) { kernel(kernels::Range{begin, end}); });
}

int64_t updates(const kernels::ScanParams& p) {
  return p.batch * p.dim * p.length * p.dstate;
}

struct Cpu {
  static void forward(const ScanArgs& args, const ScanOutputs& outputs) {
    const ScanPlan plan(args, outputs);
    const kernels::ScanParams& p = plan.params();
    parallel(cpu::forward_work(p), updates(p), [&](kernels::Range range) { cpu::forward(p, range); });
  }

  static void backward(const ScanGradArgs& args, const GradientArray& gradients) {
    ScanGradPlan plan(args, gradients);
    const kernels::ScanGradParams& p = plan.params();
    parallel(cpu::backward_work(p), updates(p.scan), [&](kernels::Range range) { cpu::backward(p, range); });
    plan.finish([](const Tensor& partial, const Tensor& total) {
      const int64_t reals = total.is_complex() ? 2 : 1, partials = partial.size(0), count = total.numel() * reals;
      const bool is_double = total.element_size() == 8 * reals;
      parallel(count, count * partials, [&](kernels::Range range) {
        cpu::ordered_sum(partial.const_data_ptr(), partials, count, is_double, total.mutable_data_ptr(), range);
      });
    });
  }

  static void update(const UpdateArgs& args, const Tensor& out) {
    const UpdatePlan plan(args, out);
    const kernels::UpdateParams& p = plan.params();
    parallel(cpu::update_work(p), p.rows * p.heads * p.head_dim * p.dstate,
             [&](kernels::Range range) { cpu::update(p, range); });
  }
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, CPU, m) {
  mamba::Operators<mamba::Cpu>::implement(m);
}
