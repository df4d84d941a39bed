// Work of the CPU kernels, shared between torch's threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "mamba/kernels/scan.h"

namespace mamba {

/// Runs kernel(range) over all of the work, in parallel; `size` is the cost of one piece in state updates.
template <class Kernel>
void parallel(int64_t work, int64_t size, Kernel&& kernel) {
  constexpr int64_t kWorthAThread = 16384;
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, size));
  at::parallel_for(0, work, grain, [&](int64_t begin, int64_t end) { kernel(kernels::Range{begin, end}); });
}

/// total = partial[0] + partial[1] + ... in this order.
inline void parallel_ordered_sum(const at::Tensor& partial, const at::Tensor& total) {
  const int64_t reals = total.is_complex() ? 2 : 1, partials = partial.size(0), count = total.numel() * reals;
  const bool is_double = total.element_size() == 8 * reals;
  parallel(count, partials, [&](kernels::Range range) {
    kernels::cpu::ordered_sum(partial.const_data_ptr(), partials, count, is_double, total.mutable_data_ptr(), range);
  });
}

}  // namespace mamba
