// Raw memory for kernel tests: elements of a run-time type, in views with strides. Whatever a test does not write stays
// the NaN of all ones, so a kernel that reads or writes beside its view is found out.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/values.h"
#include "mamba/kernels/params.h"

namespace mamba::tests {

using kernels::ScalarType;

inline const char* name_of(ScalarType type) {
  constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "float64"};
  return kNames[static_cast<size_t>(type)];
}
constexpr ScalarType kAllTypes[] = {ScalarType::kFloat32, ScalarType::kFloat16, ScalarType::kBFloat16,
                                    ScalarType::kFloat64};

/// The type that a kernel computes in for activations of this type.
inline ScalarType wide(ScalarType type) {
  return type == ScalarType::kFloat64 ? ScalarType::kFloat64 : ScalarType::kFloat32;
}

class Array {
 public:
  Array() = default;
  Array(ScalarType type, bool is_complex, int64_t count);

  int64_t count() const { return count_; }
  Number get(int64_t i) const;
  void set(int64_t i, Number x);
  void fill(Number x);
  Numbers numbers() const;
  /// Back to what nobody has written.
  void reset();
  bool is_untouched(int64_t i) const;

  std::vector<std::byte> bytes;

 private:
  int64_t at(int64_t i) const { return i * size_ * (is_complex_ ? 2 : 1); }

  ScalarType type_ = ScalarType::kFloat32;
  bool is_complex_ = false;
  int64_t count_ = 0, size_ = 4;
};

/// Nothing for an empty x: an absent argument.
Array dense(ScalarType type, bool is_complex, const Numbers& x);

/// x rounded to the type.
Numbers rounded(ScalarType type, const Numbers& x);

enum class Layout { kContiguous, kChannelLast, kPadded };
inline const char* name_of(Layout layout) {
  constexpr const char* kNames[] = {"contiguous", "channel_last", "padded"};
  return kNames[static_cast<size_t>(layout)];
}

/// A strided view of up to four dimensions, the last of which is time. kChannelLast puts time outside the two before
/// it; kPadded starts off the alignment and leaves gaps between rows.
struct View {
  Array array;
  int64_t offset = 0;
  std::array<int64_t, 4> sizes{}, strides{};

  View() = default;
  View(ScalarType type, bool is_complex, std::array<int64_t, 4> shape, Layout layout);

  bool is_defined() const { return !array.bytes.empty(); }
  int64_t count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  /// Elements in row-major order of the sizes.
  void write(const Numbers& x);
  void fill(Number x);
  Numbers numbers() const;
  /// Whether nothing was written outside the view.
  bool is_clean() const;

 private:
  int64_t at(int64_t index) const;
};

/// Where an array lies on the device that runs the kernel; null for one without bytes.
using Place = std::function<void*(const Array&)>;
inline void* on_host(const Array& x) {
  return x.bytes.empty() ? nullptr : const_cast<std::byte*>(x.bytes.data());
}

}  // namespace mamba::tests
