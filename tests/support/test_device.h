// The device that a test program tests on: a GPU, one that interprets PTX, or none. Its memory can
// be reached from the host too.
#pragma once

#include <tersor/span.h>
#include <tersor/stream.h>

#include <cstddef>
#include <string>

namespace tersor::test {

class TestDevice {
 public:
  virtual ~TestDevice() = default;

  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  /// Before a call: what it reads was written by the host, what it writes holds nothing yet.
  enum class Use { kInput, kOutput };
  virtual void prepare(const std::byte* begin, std::size_t bytes, Use use) = 0;
  virtual StreamView stream() = 0;
  virtual void synchronize() = 0;
  /// Kernels launched so far; 0 where nobody counts.
  virtual std::size_t launches() const { return 0; }
};

/// Null where a program tests on the host alone. Throws std::runtime_error that says why, where
/// there should be a device but is none.
TestDevice* test_device();

/// To be called before main; `why` is what there is instead of a device.
void set_test_device(TestDevice* device, std::string why = "");

/// Memory in which harnesses lay out their spans: the device's, where there is one.
Memory default_memory();

}  // namespace tersor::test
