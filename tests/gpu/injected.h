// Injects errors into CUDA runtime calls, one at a time, and checks the library's reaction. The PTX
// interpreter supports injection (tests/ptx_device/runtime/injected.h). A real GPU's runtime
// does not, so these tests are skipped by name.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tersor::test {

/// Code with CUDA runtime calls through the library.
class Scenario {
 public:
  virtual ~Scenario() = default;
  virtual void run() = 0;
  /// The result of the last run(), queried without injected errors.
  virtual std::vector<std::byte> result() = 0;
};

/// Exceptions allowed in addition to an exception naming the error. kRanks: the loss of another
/// rank. kTestToo: a plain CudaError, because the test calls CUDA directly.
enum class Callers { kLibrary, kRanks, kTestToo };

struct Scene {
  std::string name;
  std::function<std::unique_ptr<Scenario>()> make;  ///< runs without injected errors
  Callers callers = Callers::kLibrary;
  std::size_t most_tries = 1000;  ///< of a scene; excess calls are sampled evenly
};

class InjectedErrors : public ::testing::Test {
 protected:
  void SetUp() override;

  /// Lets each CUDA call of the scene fail. Expects the right exception, no leaked resources, and a
  /// correct next run.
  void expect_errors(const Scene& scene, cudaError_t error);
};

}  // namespace tersor::test
