#include "generic/cpu.h"

#include "generic/scan.h"
#include "generic/select.h"
#include "generic/update.h"

namespace mamba::kernels::generic::cpu {

int64_t forward_work(const ScanParams& params) {
  return params.sequences * params.dim;
}

void forward(const ScanParams& params, Range range) {
  select(params, [&](auto activation, auto state) {
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
  select(params.scan, [&](auto activation, auto state) {
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
  select(params.activation_type, [&](auto activation) {
    select(params.state_type, [&](auto stored) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t channel = i / params.head_dim;
        generic::update<typename decltype(activation)::type, typename decltype(stored)::type>(
            params, channel / params.heads, channel % params.heads, i % params.head_dim);
      }
    });
  });
}

}  // namespace mamba::kernels::generic::cpu
