// The command lines of the programs here: one path, options with a value, and flags. What is wrong raises a c10::Error
// that names the argument.
#pragma once

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <set>
#include <string>

namespace example {

class CommandLine {
 public:
  using Names = std::set<std::string>;

  // `what` is what the path is of, for error messages.
  CommandLine(int argc, char** argv, const std::string& what, const Names& options, const Names& flags = {}) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (flags.count(word) > 0) {
        values_[word];
      } else if (word.rfind("--", 0) != 0) {
        TORCH_CHECK(path_.empty(), "expected one ", what, ", but got ", path_, " and ", word);
        path_ = word;
      } else {
        TORCH_CHECK(options.count(word) > 0, "unknown option ", word);
        TORCH_CHECK(i + 1 < argc, "expected a value after ", word);
        values_[word] = argv[++i];
      }
    }
    TORCH_CHECK(!path_.empty(), "expected the path of a ", what);
  }

  const std::string& path() const { return path_; }
  bool has(const std::string& name) const { return values_.count(name) > 0; }

  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }

  int64_t integer(const std::string& name, int64_t otherwise, int64_t least) const {
    if (!has(name)) return otherwise;
    const std::string value = text(name, "");
    const char* const end = value.data() + value.size();
    int64_t number = 0;
    const auto result = std::from_chars(value.data(), end, number);
    TORCH_CHECK(result.ec == std::errc() && result.ptr == end && number >= least,
                "expected a whole number of at least ", least, " after ", name, ", but got ", value);
    return number;
  }

  double number(const std::string& name, double otherwise, double least) const {
    if (!has(name)) return otherwise;
    const std::string value = text(name, "");
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    TORCH_CHECK(!value.empty() && *end == '\0' && number >= least, "expected a number of at least ", least, " after ",
                name, ", but got ", value);
    return number;
  }

 private:
  std::string path_;
  std::map<std::string, std::string> values_;
};

// What main() returns: f()'s status, or 2 after an error, which it prints.
template <class F>
int run_program(F&& f) {
  try {
    return f();
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 2;
}

}  // namespace example
