// Errors put into calls of CUDA's runtime, one after the other, and what the library makes of them.
// The interpreted device of tests/ptx_device does that (runtime/injected.h there); the runtime of a
// real GPU does not, and these tests are skipped by name.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tersor::test {

/// What makes calls of CUDA's runtime through the library.
class Scenario {
 public:
  virtual ~Scenario() = default;
  virtual void run() = 0;
  /// What the last run() made; asked for where no error is injected.
  virtual std::vector<std::byte> result() = 0;
};

/// What a scenario may throw beside what names the error: of ranks, that another one is gone; of
/// tests that call CUDA by themselves, a CudaError that names the error alone.
enum class Callers { kLibrary, kRanks, kTestToo };

struct Scene {
  std::string name;
  std::function<std::unique_ptr<Scenario>()> make;  ///< no error is injected into it
  Callers callers = Callers::kLibrary;
  std::size_t most_tries = 1000;  ///< of a scene with more calls, evenly spread calls fail
};

class InjectedErrors : public ::testing::Test {
 protected:
  void SetUp() override;

  /// For each call of CUDA's that the scene makes: lets it fail, expects the right exception,
  /// nothing left behind, and the right result of the next run.
  void expect_errors(const Scene& scene, cudaError_t error);
};

}  // namespace tersor::test
