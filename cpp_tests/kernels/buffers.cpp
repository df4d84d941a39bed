#include "kernels/buffers.h"

#include <algorithm>
#include <cstring>

#include "mamba/kernels/numeric.h"

namespace mamba::tests {

namespace {

constexpr std::byte kUntouched{0xff};

int64_t size_of(ScalarType type) {
  return type == ScalarType::kFloat64 ? 8 : type == ScalarType::kFloat32 ? 4 : 2;
}

template <class T>
double load(const std::byte* from) {
  T x;
  std::memcpy(&x, from, sizeof(T));
  return kernels::widen(x);
}

template <class T>
void store(double value, std::byte* to) {
  T x;
  kernels::narrow(value, x);
  std::memcpy(to, &x, sizeof(T));
}

double load(ScalarType type, const std::byte* from) {
  switch (type) {
    case ScalarType::kFloat16:
      return load<kernels::Float16>(from);
    case ScalarType::kBFloat16:
      return load<kernels::BFloat16>(from);
    case ScalarType::kFloat64:
      return load<double>(from);
    default:
      return load<float>(from);
  }
}

void store(ScalarType type, double value, std::byte* to) {
  switch (type) {
    case ScalarType::kFloat16:
      return store<kernels::Float16>(value, to);
    case ScalarType::kBFloat16:
      return store<kernels::BFloat16>(value, to);
    case ScalarType::kFloat64:
      return store<double>(value, to);
    default:
      return store<float>(value, to);
  }
}

}  // namespace

Array::Array(ScalarType type, bool is_complex, int64_t count)
    : bytes(static_cast<size_t>(count * size_of(type) * (is_complex ? 2 : 1)), kUntouched),
      type_(type),
      is_complex_(is_complex),
      count_(count),
      size_(size_of(type)) {}

Number Array::get(int64_t i) const {
  const std::byte* from = bytes.data() + at(i);
  return {load(type_, from), is_complex_ ? load(type_, from + size_) : 0};
}

void Array::set(int64_t i, Number x) {
  std::byte* to = bytes.data() + at(i);
  store(type_, x.real(), to);
  if (is_complex_) store(type_, x.imag(), to + size_);
}

void Array::fill(Number x) {
  for (int64_t i = 0; i < count_; ++i) set(i, x);
}

Numbers Array::numbers() const {
  Numbers x;
  for (int64_t i = 0; i < count_; ++i) x.push_back(get(i));
  return x;
}

void Array::reset() {
  std::fill(bytes.begin(), bytes.end(), kUntouched);
}

bool Array::is_untouched(int64_t i) const {
  return std::all_of(bytes.begin() + at(i), bytes.begin() + at(i + 1), [](std::byte x) { return x == kUntouched; });
}

Array dense(ScalarType type, bool is_complex, const Numbers& x) {
  Array array(type, is_complex, static_cast<int64_t>(x.size()));
  for (int64_t i = 0; i < array.count(); ++i) array.set(i, x[static_cast<size_t>(i)]);
  return array;
}

Numbers rounded(ScalarType type, const Numbers& x) {
  return dense(type, true, x).numbers();
}

View::View(ScalarType type, bool is_complex, std::array<int64_t, 4> shape, Layout layout) : sizes(shape) {
  constexpr std::array<size_t, 4> kRowMajor = {0, 1, 2, 3}, kTimeOutside = {0, 3, 1, 2};
  const auto& order = layout == Layout::kChannelLast ? kTimeOutside : kRowMajor;
  const int64_t padding = layout == Layout::kPadded ? 3 : 0;
  int64_t stride = 1;
  for (size_t i = 4; i-- > 0;) {
    strides[order[i]] = stride;
    stride = stride * sizes[order[i]] + (i == 3 ? padding : 0);
  }
  offset = padding > 0 ? 1 : 0;
  if (count() > 0) array = Array(type, is_complex, offset + stride);
}

int64_t View::at(int64_t index) const {
  int64_t place = offset;
  for (size_t i = 4; i-- > 0;) {
    place += index % sizes[i] * strides[i];
    index /= sizes[i];
  }
  return place;
}

void View::write(const Numbers& x) {
  for (int64_t i = 0; i < count(); ++i) array.set(at(i), x[static_cast<size_t>(i)]);
}

void View::fill(Number x) {
  for (int64_t i = 0; i < count(); ++i) array.set(at(i), x);
}

Numbers View::numbers() const {
  Numbers x;
  for (int64_t i = 0; i < count(); ++i) x.push_back(array.get(at(i)));
  return x;
}

bool View::is_clean() const {
  std::vector<bool> is_inside(static_cast<size_t>(array.count()));
  for (int64_t i = 0; i < count(); ++i) is_inside[static_cast<size_t>(at(i))] = true;
  for (int64_t i = 0; i < array.count(); ++i) {
    if (!is_inside[static_cast<size_t>(i)] && !array.is_untouched(i)) return false;
  }
  return true;
}

}  // namespace mamba::tests
