// Every check of the users' arguments, the same for all dispatch keys.
#pragma once

#include "arguments.h"

namespace mamba {

/// Raises the contract's error for the first wrong argument in schema order. Values are read on the CPU only.
void check_scan(const char* op, const ScanArgs& args);
void check_scan_grad(const ScanGradArgs& args);
void check_update(const UpdateArgs& args);

}  // namespace mamba
