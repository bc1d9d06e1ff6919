// Equal bytes in guarded host memory and in device memory of exact length.
#pragma once

#include "tests/support/guarded.h"

#include <tersor/buffer.h>

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace tersor::test {

/// Bytes starting `shift` bytes after an aligned address. Device bytes are uninitialized before
/// `upload`.
class TwinBytes {
 public:
  explicit TwinBytes(std::size_t bytes, std::size_t shift = 0)
      : host_(bytes, shift, Memory::kHost),
        device_(bytes + shift, Memory::kDevice),
        shift_(shift) {}

  ByteSpan span(Memory memory) {
    return memory == Memory::kHost ? host_.span() : device_.span().subspan(shift_);
  }
  /// Copies the host's bytes to the device.
  void upload();
  /// Returns the bytes of either memory.
  std::vector<std::byte> bytes(Memory memory) const;
  /// False if a guard of the host memory was overwritten.
  bool intact() const { return host_.intact(); }

 private:
  GuardedBytes host_;
  Buffer device_;
  std::size_t shift_;
};

/// Values of one dtype, `shift` values after an aligned address.
class TwinValues {
 public:
  TwinValues(std::size_t count, Dtype dtype, std::size_t shift)
      : count_(count),
        dtype_(dtype),
        bytes_(count * dtype_bytes(dtype), shift * dtype_bytes(dtype)) {}

  ValueSpan span(Memory memory) { return {bytes_.span(memory).data(), count_, dtype_, memory}; }
  /// Sets both memories to `values`, rounded to the dtype.
  void set(const std::vector<float>& values);
  /// The values of either memory as f32.
  std::vector<float> floats(Memory memory) const;
  bool intact() const { return bytes_.intact(); }

 private:
  std::size_t count_;
  Dtype dtype_;
  TwinBytes bytes_;
};

/// An object in both memories.
template <typename T>
requires std::is_trivially_copyable_v<T>
class TwinObject {
 public:
  explicit TwinObject(const T& object) : bytes_(sizeof(T)) {
    std::memcpy(bytes_.span(Memory::kHost).data(), &object, sizeof object);
    bytes_.upload();
  }

  T* pointer(Memory memory) { return reinterpret_cast<T*>(bytes_.span(memory).data()); }
  T value(Memory memory) const {
    T copy;
    std::memcpy(&copy, bytes_.bytes(memory).data(), sizeof copy);
    return copy;
  }

 private:
  TwinBytes bytes_;
};

}  // namespace tersor::test
