// What the scan allocates on the CPU: no tensor of (batch, dim, length, dstate) anywhere, little kept for the backward,
// less than u itself while it runs. In a program of its own: torch's CPU allocator is replaced.
#include <ATen/core/List.h>
#include <ATen/ops/randn_like.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "operators/scan_call.h"

namespace mamba::tests {

namespace {

/// torch's own allocator, with a count of the bytes in use and of the most there were.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t count) override {
    in_use += static_cast<int64_t>(count);
    most = std::max(most, in_use);
    auto* held = new Held{inner_->allocate(count), static_cast<int64_t>(count)};
    return {held->data.get(), held, release, held->data.device()};
  }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

  static inline int64_t in_use = 0, most = 0;

 private:
  struct Held {
    c10::DataPtr data;
    int64_t count;
  };
  static void release(void* held) {
    in_use -= static_cast<Held*>(held)->count;
    delete static_cast<Held*>(held);
  }

  c10::Allocator* const inner_;
};

void count_allocations() {
  static CountingAllocator allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

int64_t bytes(const Tensor& x) {
  return static_cast<int64_t>(x.nbytes());
}

std::vector<Case> cases() {
  return {Case("usual").size(2, 256, 512, 16),
          Case("many_states").size(1, 384, 1024, 64),
          Case("few_channels").size(1, 32, 4096, 16),
          Case("groups").size(1, 512, 512, 16).coefficients(grouped(4), grouped(4)),
          Case("constant").size(2, 128, 512, 16).coefficients(constant(), shared()),
          Case("packed").packed(2048, {0, 100, 100, 2048}).size(1, 128, 2048, 16)};
}

/// A table, a header, a carry: nothing that grows with the problem.
constexpr int64_t kFixed = 16384;

TEST(CpuMemory, TheForwardKeepsAThirtySecondOfUForEachState) {
  count_allocations();
  for (const Case& c : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const ScanCall call = make_call(c, {at::kCPU, dtype});
      const int64_t before = CountingAllocator::in_use;
      const auto results = call_by_name("mamba::_selective_scan_fwd", call.values());
      const int64_t results_bytes = bytes(results[0].toTensor()) + bytes(results[1].toTensor());
      const int64_t kept = CountingAllocator::in_use - before - results_bytes;
      // A packed sequence may begin inside a tile that another one has begun.
      const int64_t slots = (c.length + 31) / 32 + (c.is_packed() ? c.sequences() : 0);
      EXPECT_LE(kept, c.batch * slots * c.dim * c.dstate * 4) << c.name;
      EXPECT_GT(kept, 0) << c.name;
    }
  }
}

TEST(CpuMemory, TheBackwardNeedsNoMoreThanU) {
  count_allocations();
  for (const Case& c : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const ScanCall call = make_call(c, {at::kCPU, dtype});
      const auto results = call_by_name("mamba::_selective_scan_fwd", call.values());
      std::vector<c10::IValue> arguments = {at::randn_like(call.u), c10::IValue()};
      for (const c10::IValue& x : call.values()) arguments.push_back(x);
      arguments.push_back(results[2]);
      arguments.push_back(c10::List<bool>({true, true, true, true, true, true, true, true, true}));

      const int64_t before = CountingAllocator::in_use;
      CountingAllocator::most = before;
      const auto gradients = call_by_name("mamba::_selective_scan_bwd", arguments);
      int64_t gradient_bytes = 0;
      for (const c10::IValue& x : gradients) gradient_bytes += bytes(x.toTensor());
      EXPECT_EQ(CountingAllocator::in_use - before, gradient_bytes) << c.name;
      const int64_t workspace = CountingAllocator::most - before - gradient_bytes;
      EXPECT_LE(workspace, call.u.numel() * 4 + kFixed) << c.name << " of " << c.dim << " channels";
    }
  }
}

}  // namespace

}  // namespace mamba::tests
