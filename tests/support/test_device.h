// The device under test: a GPU, the PTX interpreter, or none. Device memory is also accessible from
// the host.
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
  /// Called before each codec call. kInput: the host wrote the memory and the call reads the
  /// memory. kOutput: the memory is still uninitialized.
  enum class Use { kInput, kOutput };
  virtual void prepare(const std::byte* begin, std::size_t bytes, Use use) = 0;
  virtual StreamView stream() = 0;
  virtual void synchronize() = 0;
  /// Number of kernels launched so far; 0 if the device does not count launches.
  virtual std::size_t launches() const { return 0; }
};

/// The device under test, or null if the program tests only the host. Throws std::runtime_error
/// with the reason if a required device is missing.
TestDevice* test_device();

/// Must be called before main. `why` is the reason for a missing device.
void set_test_device(TestDevice* device, std::string why = "");

/// Memory for the spans of harnesses: device memory if a device is under test.
Memory default_memory();

}  // namespace tersor::test
