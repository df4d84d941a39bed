// Raw memory on the current CUDA device.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>

#include "kernels/buffers.h"

namespace mamba::tests {

/// Skips, and says so, where there is no device.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error);
  }
};

/// Bytes that nobody has written.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) { EXPECT_EQ(cudaMalloc(&memory_, static_cast<size_t>(bytes)), cudaSuccess); }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

/// Copies of arrays, each in an allocation of its own so that a memory checker sees every bound.
class DeviceCopy {
 public:
  explicit DeviceCopy(std::vector<Array*> arrays) : arrays_(std::move(arrays)) {
    for (const Array* x : arrays_) {
      if (x->bytes.empty()) continue;
      void* memory = nullptr;
      EXPECT_EQ(cudaMalloc(&memory, x->bytes.size()), cudaSuccess);
      EXPECT_EQ(cudaMemcpy(memory, x->bytes.data(), x->bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
      memory_[x] = memory;
    }
  }
  ~DeviceCopy() {
    for (const auto& [array, memory] : memory_) cudaFree(memory);
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  Place place() const {
    return [this](const Array& x) -> void* {
      const auto found = memory_.find(&x);
      return found == memory_.end() ? nullptr : found->second;
    };
  }

  /// Waits for the kernels and brings everything back.
  void read_back() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (Array* x : arrays_) {
      const auto found = memory_.find(x);
      if (found == memory_.end()) continue;
      EXPECT_EQ(cudaMemcpy(x->bytes.data(), found->second, x->bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    }
  }

 private:
  std::vector<Array*> arrays_;
  std::map<const Array*, void*> memory_;
};

}  // namespace mamba::tests
