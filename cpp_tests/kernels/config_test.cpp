// How a problem is cut up: checkpoint slots and channel blocks, over random problems.
#include "mamba/kernels/config.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace mamba::kernels {

namespace {

int64_t below(std::mt19937_64& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

TEST(CeilDiv, RoundsUp) {
  EXPECT_EQ(ceil_div(0, 32), 0);
  EXPECT_EQ(ceil_div(1, 32), 1);
  EXPECT_EQ(ceil_div(32, 32), 1);
  EXPECT_EQ(ceil_div(33, 32), 2);
  EXPECT_EQ(ceil_div((int64_t{1} << 62) - 1, 2), int64_t{1} << 61);
}

TEST(CheckpointSlots, OneForEachTileOfADenseRow) {
  for (int64_t length = 0; length < 300; ++length) {
    EXPECT_EQ(checkpoint_slots(length, int64_t{0}), ceil_div(length, kCheckpointSpacing)) << length;
  }
}

/// Increasing bounds with repeats, gaps before and after, and tile-sized jumps.
std::vector<int64_t> random_bounds(std::mt19937_64& random, int64_t length) {
  std::vector<int64_t> bounds = {below(random, length + 1)};
  const int64_t sequences = below(random, 12);
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t left = length - bounds.back();
    const int64_t steps[] = {0, 1, kCheckpointSpacing, below(random, 3 * kCheckpointSpacing), below(random, left + 1)};
    bounds.push_back(bounds.back() + std::min(left, steps[below(random, 5)]));
  }
  return bounds;
}

TEST(FirstSlot, TilesOfAllSequencesAreDistinctAndInBounds) {
  std::mt19937_64 random(3);
  for (int repeat = 0; repeat < 5000; ++repeat) {
    const int64_t length = below(random, 400);
    const std::vector<int64_t> bounds = random_bounds(random, length);
    const auto sequences = static_cast<int64_t>(bounds.size()) - 1;
    const int64_t slots = checkpoint_slots(length, sequences);
    std::set<int64_t> used;
    for (int64_t i = 0; i < sequences; ++i) {
      const int64_t start = bounds[static_cast<size_t>(i)], steps = bounds[static_cast<size_t>(i) + 1] - start;
      for (int64_t tile = 0; tile < ceil_div(steps, kCheckpointSpacing); ++tile) {
        const int64_t slot = first_slot(i, start) + tile;
        ASSERT_TRUE(used.insert(slot).second) << "slot " << slot << " is used twice";
        ASSERT_GE(slot, 0);
        ASSERT_LT(slot, slots);
      }
    }
  }
}

struct RandomProblem {
  ScanParams p;

  explicit RandomProblem(std::mt19937_64& random) {
    const int64_t unit = 1 + below(random, 40);
    p.dim = unit * (1 + below(random, 12));
    p.dstate = below(random, 40);
    p.batch = p.sequences = 2;
    p.length = 5;
    for (Coefficient* x : {&p.B, &p.C}) {
      x->is_constant = below(random, 4) == 0;
      x->groups = x->is_constant ? p.dim : random_divisor(random, p.dim);
    }
  }

 private:
  static int64_t random_divisor(std::mt19937_64& random, int64_t x) {
    int64_t divisor = 1 + below(random, x);
    while (x % divisor != 0) --divisor;
    return divisor;
  }
};

TEST(ChannelBlocks, CoverEveryChannelOnceAndNeverStraddleAGroup) {
  std::mt19937_64 random(4);
  for (int repeat = 0; repeat < 5000; ++repeat) {
    const ScanParams p = RandomProblem(random).p;
    const ChannelBlocks blocks = channel_blocks(p);
    int64_t next = 0;
    for (int64_t block = 0; block < blocks.count; ++block) {
      const Range channels = blocks.channels(block);
      ASSERT_EQ(channels.begin, next);
      ASSERT_GT(channels.end, channels.begin);
      next = channels.end;
      for (const Coefficient* x : {&p.B, &p.C}) {
        const int64_t size = group_size(*x, p.dim);
        ASSERT_EQ(channels.begin / size, (channels.end - 1) / size) << "a block straddles a group of " << size;
      }
    }
    ASSERT_EQ(next, p.dim);
  }
}

TEST(ChannelBlocks, EachBlockOfAGroupHasASliceOfItsOwn) {
  std::mt19937_64 random(5);
  for (int repeat = 0; repeat < 5000; ++repeat) {
    const ScanParams p = RandomProblem(random).p;
    const ChannelBlocks blocks = channel_blocks(p);
    for (const Coefficient* x : {&p.B, &p.C}) {
      const int64_t size = group_size(*x, p.dim), slices = blocks.slices(size);
      std::set<std::pair<int64_t, int64_t>> used;
      for (int64_t block = 0; block < blocks.count; ++block) {
        const int64_t slice = blocks.slice(block, size);
        ASSERT_GE(slice, 0);
        ASSERT_LT(slice, slices);
        ASSERT_TRUE(used.insert({blocks.channels(block).begin / size, slice}).second);
      }
      ASSERT_EQ(static_cast<int64_t>(used.size()), slices * (p.dim / size)) << "a slice that no block fills";
      ASSERT_EQ(partial_sums(p, *x), x->is_constant ? p.sequences : slices);
    }
  }
}

TEST(ChannelBlocks, NoneWithoutChannels) {
  ScanParams p;
  p.sequences = 3;
  EXPECT_EQ(channel_blocks(p).count, 0);
  EXPECT_EQ(partial_sums(p, p.B), 0);
  p.B.is_constant = true;
  EXPECT_EQ(partial_sums(p, p.B), 3);
}

TEST(GreatestCommonDivisor, DividesBoth) {
  EXPECT_EQ(greatest_common_divisor(12, 18), 6);
  EXPECT_EQ(greatest_common_divisor(7, 0), 7);
  EXPECT_EQ(greatest_common_divisor(5, 8), 1);
}

}  // namespace

}  // namespace mamba::kernels
