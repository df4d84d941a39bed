// A program without Python: opens the library by path, calls an operator by name, and looks at what is in its process.
// Usage: bare_process <libmamba_ops.so>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

namespace {

/// One state, u = delta = B = C = 1, A = -1: y_t is the geometric series of exp(-1).
bool computes() {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mamba::selective_scan", "");
  const at::Tensor ones = at::ones({1, 1, 3});
  std::vector<c10::IValue> stack = {ones, ones, at::full({1, 1}, -1.0), ones, ones, {}, {}, {}, false, {}, {}, false};
  op.callBoxed(stack);
  const at::Tensor out = stack.at(0).toTensor();
  double expected = 0;
  for (int64_t t = 0; t < 3; ++t) {
    expected = std::exp(-1.0) * expected + 1;
    if (std::abs(out[0][0][t].item<double>() - expected) > 1e-6) return false;
  }
  return true;
}

/// The first mapped file that has Python in its own name; folders do not count.
std::string python_in_this_process() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.rfind('/');
    if (slash != std::string::npos && line.find("python", slash) != std::string::npos) return line.substr(slash + 1);
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bare_process <libmamba_ops.so>\n");
    return 2;
  }
  if (c10::Dispatcher::singleton().findSchema({"mamba::selective_scan", ""})) {
    std::fprintf(stderr, "the operators are there before the library is\n");
    return 1;
  }
  if (!dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (!computes()) {
    std::fprintf(stderr, "the operator gives wrong numbers\n");
    return 1;
  }
  const std::string python = python_in_this_process();
  if (!python.empty()) {
    std::fprintf(stderr, "Python is in the process: %s\n", python.c_str());
    return 1;
  }
  std::printf("no Python in this process\n");
  return 0;
}
