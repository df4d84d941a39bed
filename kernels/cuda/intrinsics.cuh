// The few machine instructions that CUDA C++ has no plain words for, and what each stands for.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mamba/kernels/numeric.h"

namespace mamba::kernels::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// 2^x with a relative error of 2^-22; results below the normal range become 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x with a relative error of 2^-23; 0 for an infinite or very large x.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Hides where a value came from, so that the compiler keeps it in a register instead of computing it again.
__device__ __forceinline__ void keep(float& x) {
  asm volatile("" : "+f"(x));
}
__device__ __forceinline__ void keep(int& x) {
  asm volatile("" : "+r"(x));
}

__device__ __forceinline__ void keep(int64_t& x) {
  asm volatile("" : "+l"(x));
}
/// Float16 or BFloat16.
template <class T>
__device__ __forceinline__ void keep(T& x) {
  asm volatile("" : "+h"(x.bits));
}

/// Reads through the read-only path; `from` is aligned to the size of Word.
template <class Word>
__device__ __forceinline__ Word read_only(const void* from) {
  return __ldg(static_cast<const Word*>(from));
}

__device__ __forceinline__ void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/// Starts to copy 4, 8 or 16 aligned bytes from global into shared memory; see copies_arrived().
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes) : "memory");
  }
#else
  using Word = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, unsigned>>;
  *static_cast<Word*>(shared) = read_only<Word>(global);
#endif
}

/// The same; zeros, and nothing is read, if the source does not exist.
template <int kBytes>
__device__ __forceinline__ void copy_async_or_zeros(void* shared, const void* global, bool exists) {
#if __CUDA_ARCH__ >= 800
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int size = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(kBytes), "r"(size)
                 : "memory");
  }
#else
  using Word = std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, unsigned>>;
  *static_cast<Word*>(shared) = exists ? read_only<Word>(global) : Word{};
#endif
}

/// Waits for the copies that this thread started.
__device__ __forceinline__ void copies_arrived() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// A word of 8 bytes in memory that other threads write and read meanwhile, with these functions.
__device__ __forceinline__ uint64_t load_word(const void* from) {
  return *static_cast<const volatile uint64_t*>(from);
}
__device__ __forceinline__ void store_word(void* to, uint64_t word) {
  *static_cast<volatile uint64_t*>(to) = word;
}

/// A barrier of `threads` threads of a block, whole warps; `id` is from 1 to 15.
__device__ __forceinline__ void synchronize(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Two values rounded to nearest even, the first in the low half.
__device__ __forceinline__ uint32_t narrow_pair(float low, float high, Float16) {
  const __half2 pair = __floats2half2_rn(low, high);
  return bit_cast<uint32_t>(pair);
}
__device__ __forceinline__ uint32_t narrow_pair(float low, float high, BFloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return bit_cast<uint32_t>(pair);
}

/// The block's dynamic shared memory.
template <class Shared>
__device__ __forceinline__ Shared& shared_memory() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return *reinterpret_cast<Shared*>(dynamic_shared_memory);
}

}  // namespace mamba::kernels::cuda
