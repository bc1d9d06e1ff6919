// Views of values: a pointer, a count, a dtype, and the kind of memory (host or device).
#pragma once

#include <tersor/dtype.h>
#include <tersor/error.h>

#include <cstddef>
#include <span>
#include <type_traits>

namespace tersor {

/// The kind of memory.
enum class Memory : unsigned char { kHost, kDevice };

/// A view of `count` values of one dtype at any element-aligned address. Owns nothing. `Byte` is
/// `std::byte` or `const std::byte`; use ValueSpan and ConstValueSpan. A view is safe to copy and
/// to read on any thread.
template <typename Byte>
class BasicValueSpan {
 public:
  BasicValueSpan() = default;

  /// `count` is in values. Throws InvalidArgumentError for a null pointer with a nonzero count.
  BasicValueSpan(Byte* pointer, std::size_t count, Dtype dtype, Memory memory = Memory::kHost)
      : pointer_(pointer), count_(count), dtype_(dtype), memory_(memory) {
    if (pointer == nullptr && count != 0)
      throw InvalidArgumentError("a span of " + std::to_string(count) +
                                 " values has a null pointer");
  }

  /// Converts every range that std::span accepts: a vector or an array of float, Bf16, F16, …
  template <typename Range>
  requires requires(Range& range) {
    std::span(range);
    DtypeOf<std::remove_cv_t<typename decltype(std::span(range))::element_type>>::value;
  } &&(std::is_const_v<Byte> ||
       !std::is_const_v<typename decltype(std::span(std::declval<Range&>()))::element_type>)
      BasicValueSpan(Range&& range)  // NOLINT: implicit on purpose
      : BasicValueSpan(
            reinterpret_cast<Byte*>(std::span(range).data()), std::span(range).size(),
            DtypeOf<std::remove_cv_t<typename decltype(std::span(range))::element_type>>::value) {
  }

  /// Converts a mutable view to a const view.
  operator BasicValueSpan<const std::byte>() const requires(!std::is_const_v<Byte>) {
    return {pointer_, count_, dtype_, memory_};
  }

  /// Returns the address of the first value.
  Byte* pointer() const { return pointer_; }
  /// Returns the number of values.
  std::size_t count() const { return count_; }
  /// Returns the size in bytes.
  std::size_t bytes() const { return count_ * dtype_bytes(dtype_); }
  /// Returns the type of the values.
  Dtype dtype() const { return dtype_; }
  /// Returns the kind of memory.
  Memory memory() const { return memory_; }
  /// True if the view has no values.
  bool empty() const { return count_ == 0; }

  /// Returns the values [first, first + count). Throws InvalidArgumentError if the range exceeds
  /// the span.
  BasicValueSpan subspan(std::size_t first, std::size_t count) const {
    if (first > count_ || count > count_ - first)
      throw InvalidArgumentError("values " + std::to_string(first) + " to " +
                                 std::to_string(first + count) + " lie outside a span of " +
                                 std::to_string(count_));
    return {pointer_ == nullptr ? nullptr : pointer_ + first * dtype_bytes(dtype_), count, dtype_,
            memory_};
  }

  /// Returns the values as a std::span. Throws InvalidArgumentError for another type or for device
  /// memory.
  template <typename T>
  auto as() const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    if (DtypeOf<T>::value != dtype_ || memory_ != Memory::kHost)
      throw InvalidArgumentError("the span has values of type " + std::string(dtype_name(dtype_)) +
                                 (memory_ == Memory::kHost ? "" : " on a device") +
                                 ", but host values of type " +
                                 std::string(dtype_name(DtypeOf<T>::value)) + " are needed");
    return std::span<Element>(reinterpret_cast<Element*>(pointer_), count_);
  }

 private:
  Byte* pointer_ = nullptr;
  std::size_t count_ = 0;
  Dtype dtype_ = Dtype::kF32;
  Memory memory_ = Memory::kHost;
};

/// A view of values that may be changed.
using ValueSpan = BasicValueSpan<std::byte>;
/// A view of values that are only read.
using ConstValueSpan = BasicValueSpan<const std::byte>;
/// Bytes that may be changed, on the host or a device.
using ByteSpan = std::span<std::byte>;
/// Bytes that are only read, on the host or a device.
using ConstByteSpan = std::span<const std::byte>;

}  // namespace tersor
