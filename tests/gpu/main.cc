// Selects the GPU for the tests. Without a GPU, each test is skipped by name with the reason.

#include "tests/gpu/hooks.h"
#include "tests/support/test_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <tersor/buffer.h>

#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

namespace tersor::test {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// Managed memory with a free list, and a separate stream.
class Gpu final : public TestDevice {
 public:
  std::byte* allocate(std::size_t bytes) override {
    auto known = free_.find(bytes);
    if (known != free_.end()) {
      std::byte* memory = known->second;
      free_.erase(known);
      return memory;
    }
    void* memory = nullptr;
    check(cudaMallocManaged(&memory, bytes));
    bytes_[static_cast<std::byte*>(memory)] = bytes;
    mark(memory, bytes, Use::kOutput);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) override {
    mark(memory, bytes_.at(memory), Use::kOutput);
    free_.emplace(bytes_.at(memory), memory);
  }

  /// Only a call's inputs count as written, so reads outside of the inputs are detected.
  void prepare(const std::byte* begin, std::size_t bytes, Use use) override {
    mark(begin, bytes, use);
  }
  StreamView stream() override { return stream_.view(); }
  void synchronize() override { stream_.synchronize(); }
  std::size_t launches() const override {
    return hooks().calls == nullptr ? 0 : hooks().calls("cudaLaunchKernel");
  }

 private:
  /// The PTX interpreter reports reads of unwritten memory.
  static void mark(const void* begin, std::size_t bytes, Use use) {
    if (hooks().mark != nullptr) hooks().mark(begin, bytes, use == Use::kInput ? 1 : 0);
  }

  Stream stream_;
  std::map<std::byte*, std::size_t> bytes_;
  std::multimap<std::size_t, std::byte*> free_;
};

/// Skips each test at its start.
class SkipAll : public ::testing::EmptyTestEventListener {
 public:
  explicit SkipAll(std::string why) : why_(std::move(why)) {}

  void OnTestStart(const ::testing::TestInfo&) override { GTEST_SKIP() << why_; }

 private:
  std::string why_;
};

std::string missing_gpu() {
  try {
    const Stream stream;
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void print_gpu() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  std::cout << "on " << properties.name << ", compute capability " << properties.major << '.'
            << properties.minor << std::endl;
}

}  // namespace
}  // namespace tersor::test

int main(int argc, char** argv) {
  using namespace tersor::test;
  ::testing::InitGoogleTest(&argc, argv);
  if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const std::string missing = missing_gpu();
  if (!missing.empty()) {
    set_test_device(nullptr, missing);
    ::testing::UnitTest::GetInstance()->listeners().Append(new SkipAll(missing));
    return RUN_ALL_TESTS();
  }
  static Gpu* const gpu = new Gpu;  // outlives the static objects of tests
  set_test_device(gpu);
  print_gpu();
  return RUN_ALL_TESTS();
}
