// The same bytes in host memory, between guards, and in device memory that ends where they end.
#pragma once

#include "tests/support/guarded.h"

#include <tersor/buffer.h>

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace tersor::test {

/// Bytes `shift` behind an aligned address. The device's hold nothing before they are uploaded.
class TwinBytes {
 public:
  explicit TwinBytes(std::size_t bytes, std::size_t shift = 0)
      : host_(bytes, shift, Memory::kHost),
        device_(bytes + shift, Memory::kDevice),
        shift_(shift) {}

  ByteSpan span(Memory memory) {
    return memory == Memory::kHost ? host_.span() : device_.span().subspan(shift_);
  }
  /// The device's are as the host's.
  void upload();
  /// Either's, in host memory.
  std::vector<std::byte> bytes(Memory memory) const;
  /// False where something was written outside of the host's.
  bool intact() const { return host_.intact(); }

 private:
  GuardedBytes host_;
  Buffer device_;
  std::size_t shift_;
};

/// Values of one dtype, `shift` values behind an aligned address.
class TwinValues {
 public:
  TwinValues(std::size_t count, Dtype dtype, std::size_t shift)
      : count_(count),
        dtype_(dtype),
        bytes_(count * dtype_bytes(dtype), shift * dtype_bytes(dtype)) {}

  ValueSpan span(Memory memory) { return {bytes_.span(memory).data(), count_, dtype_, memory}; }
  /// In both memories, rounded to the dtype.
  void set(const std::vector<float>& values);
  /// Either's, widened.
  std::vector<float> floats(Memory memory) const;
  bool intact() const { return bytes_.intact(); }

 private:
  std::size_t count_;
  Dtype dtype_;
  TwinBytes bytes_;
};

/// One object in both memories.
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
