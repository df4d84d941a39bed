// From work to pieces, and from pieces to the kernels of the best ISA level that this CPU has. The generic kernels take
// what those have no form of: a complex A, and steps in double precision with a state that is not, or the reverse.
#include <cstdlib>
#include <cstring>

#include "cpu/level.h"
#include "generic/cpu.h"
#include "generic/scan.h"
#include "mamba/kernels/config_cpu.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cpu {

namespace {

struct Level {
  const char* name;
  bool is_supported;
  const Kernels* kernels;
};

/// MAMBA_OPS_CPU names the highest level to use. Without it that is the highest there is.
Level choose_level() {
#ifdef __x86_64__
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  const Level levels[] = {
      {"v4", v4, &v4::kKernels}, {"v3", v3, &v3::kKernels}, {"baseline", true, &baseline::kKernels}};
#else
  const Level levels[] = {{"baseline", true, &baseline::kKernels}};
#endif
  const char* highest = std::getenv("MAMBA_OPS_CPU");
  bool is_known = false;
  for (const Level& level : levels) is_known = is_known || (highest && std::strcmp(highest, level.name) == 0);
  bool is_allowed = !is_known;
  for (const Level& level : levels) {
    is_allowed = is_allowed || std::strcmp(highest, level.name) == 0;
    if (is_allowed && level.is_supported) return level;
  }
  return levels[sizeof(levels) / sizeof(Level) - 1];
}

const Level& level() {
  static const Level chosen = choose_level();
  return chosen;
}

ScanPiece piece_of(const ScanParams& p, int64_t sequence, Range channels) {
  const generic::Sequence s = generic::sequence(p, sequence);
  ScanPiece piece;
  piece.sequence = sequence;
  piece.batch = s.batch;
  piece.start = s.start;
  piece.steps = s.steps;
  piece.slot = s.slot;
  piece.channels = channels;
  piece.scanned = {0, s.steps};
  return piece;
}

int64_t chunks_of(const ScanParams& p) {
  return p.carries ? forward_chunks(p) : 1;
}

/// A chunk may lie beyond the end of a sequence that is shorter than the whole length.
ScanPiece chunk_of(const ScanParams& p, ScanPiece piece, int64_t chunk) {
  const int64_t size = chunk_steps(p, chunks_of(p)), begin = chunk * size, end = begin + size;
  piece.chunk = chunk;
  piece.chunks = chunks_of(p);
  piece.scanned = {begin < piece.steps ? begin : piece.steps, end < piece.steps ? end : piece.steps};
  return piece;
}

/// Double precision on one side only.
bool is_mixed(const UpdateParams& p) {
  return (p.activation_type == ScalarType::kFloat64) != (p.state_type == ScalarType::kFloat64);
}

}  // namespace

const char* level_name() {
  return level().name;
}

int64_t carries_size(const ScanParams& params) {
  const int64_t carried = forward_chunks(params) - 1;
  const int64_t real = params.activation_type == ScalarType::kFloat64 ? sizeof(double) : sizeof(float);
  return carried * params.dim * (2 * params.dstate + 1) * real;
}

int64_t carry_work(const ScanParams& params) {
  return chunks_of(params) - 1;
}

void carry(const ScanParams& params, Range range) {
  ScanParams p = params;
  p.checkpoints = nullptr;
  for (int64_t chunk = range.begin; chunk < range.end; ++chunk) {
    level().kernels->carry(p, chunk_of(p, piece_of(p, 0, {0, p.dim}), chunk));
  }
}

int64_t forward_work(const ScanParams& params) {
  if (params.is_complex) return generic::cpu::forward_work(params);
  return params.sequences * ceil_div(params.dim, forward_channels(params)) * chunks_of(params);
}

void forward(const ScanParams& params, Range range) {
  if (params.is_complex) return generic::cpu::forward(params, range);
  const int64_t width = forward_channels(params), blocks = ceil_div(params.dim, width), chunks = chunks_of(params);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t first = i / chunks % blocks * width, end = first + width;
    const Range channels{first, end < params.dim ? end : params.dim};
    level().kernels->forward(params, chunk_of(params, piece_of(params, i / chunks / blocks, channels), i % chunks));
  }
}

int64_t backward_work(const ScanGradParams& params) {
  if (params.scan.is_complex) return generic::cpu::backward_work(params);
  return params.scan.sequences * BackwardPieces(params.scan).count;
}

void backward(const ScanGradParams& params, Range range) {
  if (params.scan.is_complex) return generic::cpu::backward(params, range);
  const BackwardPieces pieces(params.scan);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const ScanPiece piece = piece_of(params.scan, i / pieces.count, pieces.channels(i % pieces.count));
    level().kernels->backward(params, piece, pieces.blocks);
  }
}

int64_t update_work(const UpdateParams& params) {
  if (is_mixed(params)) return generic::cpu::update_work(params);
  return params.rows * UpdatePieces(flattened(params)).count;
}

void update(const UpdateParams& params, Range range) {
  if (is_mixed(params)) return generic::cpu::update(params, range);
  const UpdateParams p = flattened(params);
  const UpdatePieces pieces(p);
  for (int64_t i = range.begin; i < range.end; ++i) {
    UpdatePiece piece;
    piece.row = i / pieces.count;
    piece.slot = slot_of(p.slot_of_row, piece.row);
    if (piece.slot >= p.slots) piece.slot = -1;
    piece.of_one_head = p.head_dim > 1;
    piece.head = i % pieces.count / pieces.blocks * (piece.of_one_head ? 1 : pieces.run);
    piece.group_B = piece.head / (p.heads / p.B.groups);
    piece.group_C = piece.head / (p.heads / p.C.groups);
    piece.channels = pieces.channels(i % pieces.count);
    level().kernels->update(p, piece);
  }
}

namespace {

template <class Real>
void add_up(const Real* partial, int64_t partials, int64_t count, Real* total, Range range) {
  for (int64_t i = range.begin; i < range.end; ++i) total[i] = 0;
  for (int64_t k = 0; k < partials; ++k) {
    for (int64_t i = range.begin; i < range.end; ++i) total[i] += partial[k * count + i];
  }
}

}  // namespace

void ordered_sum(const void* partial, int64_t partials, int64_t count, bool is_double, void* total, Range range) {
  if (is_double) {
    add_up(static_cast<const double*>(partial), partials, count, static_cast<double*>(total), range);
  } else {
    add_up(static_cast<const float*>(partial), partials, count, static_cast<float*>(total), range);
  }
}

}  // namespace mamba::kernels::cpu
