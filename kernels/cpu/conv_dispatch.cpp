// From the convolution's work to pieces, and to the kernels of the best ISA level that this CPU has; the generic ones
// take more taps than those do.
#include <cstring>

#include "cpu/conv_level.h"
#include "generic/conv.h"
#include "generic/conv_cpu.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cpu {

namespace {

const ConvKernels& kernels_of_level() {
#ifdef __x86_64__
  static const bool is_v4 = std::strcmp(level_name(), "v4") == 0, is_v3 = std::strcmp(level_name(), "v3") == 0;
  if (is_v4) return v4::kConvKernels;
  if (is_v3) return v3::kConvKernels;
#endif
  return baseline::kConvKernels;
}

/// The blocks of channels that share a vector.
struct ConvBlocks {
  int64_t lanes, count;

  ConvBlocks(ScalarType type, int64_t dim) {
    const ConvKernels& kernels = kernels_of_level();
    lanes = type == ScalarType::kFloat64 ? kernels.lanes_of_doubles : kernels.lanes;
    count = ceil_div(dim, lanes);
  }
  Range channels(int64_t block, int64_t dim) const {
    return {block * lanes, (block + 1) * lanes < dim ? (block + 1) * lanes : dim};
  }
};

/// f(piece) for some of the blocks of all sequences.
template <class F>
void for_each_piece(const ConvParams& p, Range range, F&& f) {
  const ConvBlocks blocks(p.activation_type, p.dim);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t index = i / blocks.count;
    const generic::Sequence s = generic::sequence(p, index);
    f(ConvPiece{index, s.batch, s.start, s.start + s.steps, blocks.channels(i % blocks.count, p.dim)});
  }
}

bool is_vectorised(const ConvParams& p) {
  return p.width <= kMostConvTaps;
}

}  // namespace

int64_t conv_forward_work(const ConvParams& p) {
  if (!is_vectorised(p)) return generic::cpu::conv_forward_work(p);
  return p.sequences * ConvBlocks(p.activation_type, p.dim).count;
}

void conv_forward(const ConvParams& p, Range range) {
  if (!is_vectorised(p)) return generic::cpu::conv_forward(p, range);
  for_each_piece(p, range, [&](const ConvPiece& piece) { kernels_of_level().forward(p, piece); });
}

int64_t conv_dpre_work(const ConvGradParams& g) {
  return is_vectorised(g.conv) ? 0 : generic::cpu::conv_dpre_work(g);
}

void conv_dpre(const ConvGradParams& g, Range range) {
  if (!is_vectorised(g.conv)) generic::cpu::conv_dpre(g, range);
}

int64_t conv_backward_work(const ConvGradParams& g) {
  if (!is_vectorised(g.conv)) return generic::cpu::conv_backward_work(g);
  return g.conv.sequences * ConvBlocks(g.conv.activation_type, g.conv.dim).count;
}

void conv_backward(const ConvGradParams& g, Range range) {
  if (!is_vectorised(g.conv)) return generic::cpu::conv_backward(g, range);
  for_each_piece(g.conv, range, [&](const ConvPiece& piece) { kernels_of_level().backward(g, piece); });
}

int64_t conv_update_work(const ConvUpdateParams& p) {
  if (p.width > kMostConvTaps) return generic::cpu::conv_update_work(p);
  return p.rows * ConvBlocks(p.activation_type, p.dim).count;
}

void conv_update(const ConvUpdateParams& p, Range range) {
  if (p.width > kMostConvTaps) return generic::cpu::conv_update(p, range);
  const ConvBlocks blocks(p.activation_type, p.dim);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / blocks.count, slot = slot_of(p.slot_of_row, row);
    const bool has_slot = slot >= 0 && slot < p.slots;
    kernels_of_level().update(p, {has_slot ? slot : -1, row, 0, 1, blocks.channels(i % blocks.count, p.dim)});
  }
}

}  // namespace mamba::kernels::cpu
