// The generic kernels on the CPU.
#include "generic/scan.h"
#include "generic/select.h"
#include "generic/update.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cpu {

int64_t forward_work(const ScanParams& params) {
  return params.sequences * params.dim;
}

void forward(const ScanParams& params, Range range) {
  generic::select(params, [&](auto activation, auto state) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      generic::forward<typename decltype(activation)::type, typename decltype(state)::type>(params, i / params.dim,
                                                                                            i % params.dim);
    }
  });
}

int64_t backward_work(const ScanGradParams& params) {
  return params.scan.sequences * channel_blocks(params.scan).count;
}

void backward(const ScanGradParams& params, Range range) {
  const ChannelBlocks blocks = channel_blocks(params.scan);
  generic::select(params.scan, [&](auto activation, auto state) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      generic::backward<typename decltype(activation)::type, typename decltype(state)::type>(
          params, blocks, i / blocks.count, i % blocks.count);
    }
  });
}

int64_t update_work(const UpdateParams& params) {
  return params.rows * params.heads * params.head_dim;
}

void update(const UpdateParams& params, Range range) {
  generic::select(params.activation_type, [&](auto activation) {
    generic::select(params.state_type, [&](auto stored) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t channel = i / params.head_dim;
        generic::update<typename decltype(activation)::type, typename decltype(stored)::type>(
            params, channel / params.heads, channel % params.heads, i % params.head_dim);
      }
    });
  });
}

namespace {

template <class Real>
void ordered_sum(const Real* partial, int64_t partials, int64_t count, Real* total, Range range) {
  for (int64_t i = range.begin; i < range.end; ++i) total[i] = 0;
  for (int64_t k = 0; k < partials; ++k) {
    for (int64_t i = range.begin; i < range.end; ++i) total[i] += partial[k * count + i];
  }
}

}  // namespace

void ordered_sum(const void* partial, int64_t partials, int64_t count, bool is_double, void* total, Range range) {
  if (is_double) {
    ordered_sum(static_cast<const double*>(partial), partials, count, static_cast<double*>(total), range);
  } else {
    ordered_sum(static_cast<const float*>(partial), partials, count, static_cast<float*>(total), range);
  }
}

}  // namespace mamba::kernels::cpu
