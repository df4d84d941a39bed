// Tiles in shared memory, handed from some warps of a block to others.
#pragma once

#include "cuda/intrinsics.cuh"

namespace mamba::kernels::cuda {

/// Rounds of: a fixed number of threads arrive and go on, others wait for all of them and see what they wrote before.
/// Every thread arrives for itself: compute-sanitizer follows that.
class Handover {
 public:
  /// By one thread, before a barrier of the block.
  __device__ __forceinline__ void set(int arrivals_of_a_round) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals_of_a_round) : "memory");
#else
    count[0] = 0;
    count[1] = static_cast<unsigned>(arrivals_of_a_round);
#endif
  }
  __device__ __forceinline__ void arrive() {
#if __CUDA_ARCH__ >= 800
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address()) : "memory");
#else
    __threadfence_block();
    atomicAdd(&count[0], 1u);  // counts threads: their order makes no difference
#endif
  }
  /// `round` counts from 0; nobody may be a whole round behind.
  __device__ __forceinline__ void await(int round) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred is_over;\n"
        "again:\nmbarrier.try_wait.parity.shared.b64 is_over, [%0], %1;\n@!is_over bra again;\n}" ::"r"(address()),
        "r"(round & 1)
        : "memory");
#elif __CUDA_ARCH__ >= 800
    asm volatile(
        "{\n.reg .pred is_over;\n"
        "again:\nmbarrier.test_wait.parity.shared.b64 is_over, [%0], %1;\n@!is_over bra again;\n}" ::"r"(address()),
        "r"(round & 1)
        : "memory");
#else
    const volatile unsigned* seen = count;
    const unsigned wanted = seen[1] * (static_cast<unsigned>(round) + 1);
    while (static_cast<int>(seen[0] - wanted) < 0) {
    }
    __threadfence_block();
    __syncwarp();
#endif
  }

 private:
#if __CUDA_ARCH__ >= 800
  __device__ __forceinline__ unsigned address() const {
    return static_cast<unsigned>(__cvta_generic_to_shared(this));
  }
#endif

  alignas(8) unsigned count[2];
};

}  // namespace mamba::kernels::cuda
