// As much of a GPU as the schemes need to be followed on a CPU: warps in lockstep, and what their accesses cost.
//
// A value that every thread has is an array here, with one element for each lane; an instruction is a loop over the
// lanes. Where the real code has a barrier, one loop over all threads of a block ends and the next begins.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>

#include "problem.h"

namespace mamba_study {

template <class T>
using Lanes = std::array<T, kWarpSize>;

/// __shfl_up_sync: each lane reads its neighbour `by` lanes before; the first ones keep their own value.
template <class T>
Lanes<T> shuffle_up(const Lanes<T>& x, int by) {
  Lanes<T> result = x;
  for (int lane = by; lane < kWarpSize; ++lane) result[lane] = x[lane - by];
  return result;
}

/// Global memory moves in sectors of 32 bytes: what the loads from one tensor ask for, and what they need of that.
struct Traffic {
  const float* tensor;  // begins with a sector, as torch's do
  int64_t sectors = 0, words = 0;

  /// One load instruction of `width` consecutive words for each lane; nullptr: a lane that takes no part.
  void load(const Lanes<const float*>& from, int width) {
    std::set<int64_t> touched;
    for (const float* address : from) {
      if (!address) continue;
      for (int k = 0; k < width; ++k) touched.insert((address + k - tensor) / 8);
      words += width;
    }
    sectors += static_cast<int64_t>(touched.size());
  }

  double bytes_by_bytes_used() const { return 8.0 * static_cast<double>(sectors) / static_cast<double>(words); }
};

/// Shared memory has 32 banks of one word each; a bank serves one word a cycle. The cycles of a 16-byte read, which
/// goes by eight lanes at a time. `word` is each lane's first.
inline int cycles_of_quads(const Lanes<int>& word) {
  int cycles = 0;
  for (int first = 0; first < kWarpSize; first += 8) {
    std::array<std::set<int>, 32> words_of_bank;
    for (int lane = first; lane < first + 8; ++lane) {
      for (int k = 0; k < 4; ++k) words_of_bank[(word[lane] + k) % 32].insert(word[lane] + k);
    }
    size_t most = 0;
    for (const std::set<int>& words : words_of_bank) most = std::max(most, words.size());
    cycles += static_cast<int>(most);
  }
  return cycles;
}

}  // namespace mamba_study
