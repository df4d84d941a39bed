// Errors as users see them: the class and the exact text.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <typeinfo>

namespace mamba::tests {

enum class Kind { kValue, kType, kNotImplemented, kOther };

inline std::ostream& operator<<(std::ostream& out, Kind kind) {
  constexpr const char* kNames[] = {"ValueError", "TypeError", "NotImplementedError", "RuntimeError"};
  return out << kNames[static_cast<size_t>(kind)];
}

inline Kind kind_of(const c10::Error& error) {
  if (typeid(error) == typeid(c10::ValueError)) return Kind::kValue;
  if (typeid(error) == typeid(c10::TypeError)) return Kind::kType;
  if (typeid(error) == typeid(c10::NotImplementedError)) return Kind::kNotImplemented;
  return Kind::kOther;
}

/// Calls f, which has to throw.
template <class F>
void expect_error(F&& f, Kind kind, const std::string& text) {
  try {
    f();
    ADD_FAILURE() << "no error, instead of: " << text;
  } catch (const c10::Error& error) {
    EXPECT_EQ(kind_of(error), kind);
    EXPECT_EQ(error.what_without_backtrace(), text);
  }
}

}  // namespace mamba::tests
