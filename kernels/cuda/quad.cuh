// Four neighbouring elements: the unit in which kernels read and write global memory.
#pragma once

#include "cuda/intrinsics.cuh"

namespace mamba::kernels::cuda {

/// Kept as it came, in one or two words per pair: taking it apart would wait for it.
template <class T>
struct Quad {
  using Word = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
  struct alignas(sizeof(Word)) Elements {
    T at[4];
  };

  Word word;

  static __device__ __forceinline__ Quad zero() { return {Word{}}; }
  static __device__ __forceinline__ Quad of(const T (&x)[4]) {
    return {bit_cast<Word>(Elements{{x[0], x[1], x[2], x[3]}})};
  }
  /// `from` is aligned to the quad's size.
  static __device__ __forceinline__ Quad load(const T* from) { return {read_only<Word>(from)}; }

  static __device__ __forceinline__ Quad narrowed(const float (&x)[4]) {
    if constexpr (sizeof(T) == 4) {
      return {bit_cast<Word>(make_float4(x[0], x[1], x[2], x[3]))};
    } else {
      return {make_uint2(narrow_pair(x[0], x[1], T()), narrow_pair(x[2], x[3], T()))};
    }
  }
  __device__ __forceinline__ T element(int i) const { return bit_cast<Elements>(word).at[i]; }

  __device__ __forceinline__ void widen_into(float (&x)[4], bool turn = false) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = widen(element(i));
    if (turn) {
      swap(x[0], x[3]);
      swap(x[1], x[2]);
    }
  }
  __device__ __forceinline__ Quad turned(bool turn) const {
    return turn ? of({element(3), element(2), element(1), element(0)}) : *this;
  }

 private:
  static __device__ __forceinline__ void swap(float& x, float& y) {
    const float z = x;
    x = y;
    y = z;
  }
};

__device__ __forceinline__ float4 load_float4(const float* shared) {
  return *reinterpret_cast<const float4*>(shared);
}
__device__ __forceinline__ void store_float4(float* shared, const float (&x)[4]) {
  *reinterpret_cast<float4*>(shared) = make_float4(x[0], x[1], x[2], x[3]);
}

/// How the four elements of a quad follow each other in memory, and whether one instruction moves them all.
struct QuadAccess {
  int64_t stride = 1;
  bool is_vector = false;  // the stride is 1 or -1, all quads are aligned, and each exists as a whole or not at all
  bool is_turned = false;  // moved by one instruction, the last element comes first

  QuadAccess() = default;

  /// Quads start at `first` and a multiple of four elements of `stride_`, plus multiples of `other_stride`, from it;
  /// `extent` elements of `stride_` exist.
  template <class T>
  __device__ QuadAccess(const T* first, int64_t stride_, int64_t other_stride, int64_t extent) : stride(stride_) {
    is_vector = (stride == 1 || stride == -1) && other_stride % 4 == 0 && extent % 4 == 0 &&
                reinterpret_cast<uintptr_t>(first + (stride < 0 ? 3 * stride : 0)) % (4 * sizeof(T)) == 0;
    is_turned = is_vector && stride < 0;
  }

  /// Where one instruction finds the quad that begins at `first`.
  template <class T>
  __device__ __forceinline__ T* lowest(T* first) const {
    return is_turned ? first - 3 : first;
  }

  /// The quad of which `left` elements, or more, exist from `from` on, as it lies in memory: see is_turned.
  template <class T>
  __device__ __forceinline__ Quad<T> load(const T* from, int left) const {
    if (is_vector) return left > 0 ? Quad<T>::load(lowest(from)) : Quad<T>::zero();
    T x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = i < left ? from[i * stride] : T();
    return Quad<T>::of(x);
  }

  template <class T>
  __device__ __forceinline__ void store(T* to, const Quad<T>& quad, int left) const {
    if (is_vector) {
      if (left > 0) *reinterpret_cast<typename Quad<T>::Word*>(lowest(to)) = quad.turned(is_turned).word;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < left) to[i * stride] = quad.element(i);
      }
    }
  }
};

}  // namespace mamba::kernels::cuda
