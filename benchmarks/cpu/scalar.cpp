// The scalar loops as a shared library, for operator_benchmark.py.
#include "scalar.h"

using mamba::benchmarks::ScalarScan;
using mamba::benchmarks::ScalarUpdate;

extern "C" void scalar_forward(const ScalarScan* scan) {
  for (int64_t d = 0; d < scan->dim; ++d) scan->channel(d);
}

extern "C" void scalar_update(const ScalarUpdate* step) {
  for (int64_t d = 0; d < step->dim; ++d) step->channel(d);
}
