// Lists of small numbers as bits, one value at a time: the reference for kernels/bits/bits-inl.h.
//
// A number is split into a low part of fixed width and a quotient. The low parts are stored next to
// each other. The quotients of a list are unary codes in a plane of their own: q zeros and a one
// each. A decoder can therefore find the codes of many numbers at once (Rice 1979, rearranged). Bit
// b of a plane is bit b mod 8 of byte b / 8.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tersor::kernels {

/// The maximum width of a field.
constexpr unsigned kMaxFieldBits = 56;
/// Bytes that a PlaneWriter may write, and `field_at` may read, after the last bit.
constexpr std::size_t kPlaneSlack = 8;
/// Bytes after a list or a plane that vector code may read or write.
constexpr std::size_t kPackedSlack = 64;

/// Appends fields and unary codes to memory.
class PlaneWriter {
 public:
  explicit PlaneWriter(std::byte* bytes) : start_(bytes), next_(bytes) {}

  /// Appends `width` bits, at most kMaxFieldBits. The other bits of `field` must be 0.
  void put(std::uint64_t field, unsigned width) {
    pending_ |= field << fill_;
    fill_ += width;
    std::memcpy(next_, &pending_, sizeof pending_);
    next_ += fill_ / 8;
    pending_ >>= fill_ & ~7u;
    fill_ &= 7;
  }

  /// Appends up to 64 bits.
  void put_wide(std::uint64_t field, unsigned width) {
    if (width > kMaxFieldBits) {
      put(field & 0xffffffff, 32);
      field >>= 32;
      width -= 32;
    }
    put(field, width);
  }

  /// Appends a unary code.
  void put_unary(std::uint32_t quotient) {
    for (; quotient >= 48; quotient -= 48) put(0, 48);
    put(std::uint64_t{1} << quotient, quotient + 1);
  }

  /// Pads with zeros to whole 32-bit words. Returns the number of words since the start.
  std::size_t finish() {
    std::memcpy(next_, &pending_, sizeof pending_);
    next_ += fill_ != 0;
    pending_ = fill_ = 0;
    for (; (next_ - start_) % 4 != 0; ++next_) *next_ = std::byte{0};
    return static_cast<std::size_t>(next_ - start_) / 4;
  }

 private:
  std::byte* const start_;
  std::byte* next_;
  std::uint64_t pending_ = 0;  // bits that do not fill a byte yet
  unsigned fill_ = 0;          // number of these bits
};

/// Returns the field of `width` bits, at most kMaxFieldBits, from `bit` on.
inline std::uint64_t field_at(const std::byte* plane, std::uint64_t bit, unsigned width) {
  std::uint64_t bits;
  std::memcpy(&bits, plane + bit / 8, sizeof bits);
  return bits >> bit % 8 & ((std::uint64_t{1} << width) - 1);
}

/// Returns a field of up to 64 bits.
inline std::uint64_t wide_field_at(const std::byte* plane, std::uint64_t bit, unsigned width) {
  if (width <= 32) return field_at(plane, bit, width);
  return field_at(plane, bit, 32) | field_at(plane, bit + 32, width - 32) << 32;
}

/// The result of `read_quotients` for a plane that does not contain the requested numbers.
constexpr std::size_t kInvalidPlane = std::numeric_limits<std::size_t>::max();

/// Reads `count` unary codes from a plane of `words` 32-bit words, and never reads beyond the
/// plane. Returns the index of the bit after the last code. Returns kInvalidPlane if the plane has
/// fewer codes, if a quotient does not fit into a Number, or if the bits up to the next whole word
/// are not zeros.
template <typename Number>
std::size_t read_quotients(const std::byte* plane, std::size_t words, std::size_t count,
                           Number* quotients) {
  if (count == 0) return 0;
  std::size_t done = 0;
  std::uint64_t next = 0;  // the first bit of the next code
  for (std::size_t word = 0; word < words; ++word) {
    std::uint32_t ones;
    std::memcpy(&ones, plane + 4 * word, sizeof ones);
    for (; ones != 0; ones &= ones - 1) {
      if (done == count) return kInvalidPlane;
      const std::uint64_t bit = 32 * word + static_cast<unsigned>(std::countr_zero(ones));
      if (bit - next > std::numeric_limits<Number>::max()) return kInvalidPlane;
      quotients[done++] = static_cast<Number>(bit - next);
      next = bit + 1;
    }
    if (done == count) return next;
  }
  return kInvalidPlane;
}

/// The width of the low parts of a list, and the bits of all numbers.
struct Width {
  unsigned low_bits = 0;
  std::uint64_t bits = 0;
};

/// Returns the width in [0, most] with the fewest bits for a list: `low_bits` bits, and the unary
/// code of the quotient, for each number. Ties go to the smaller width. The size is convex in the
/// width, so a search from the mean ends at the best width.
template <typename Number>
Width best_width(const Number* numbers, std::size_t count, unsigned most) {
  if (count == 0) return {};
  // Lists of 16-bit numbers have at most 2^16 numbers.
  using Sum =
      std::conditional_t<sizeof(Number) <= 2, std::uint32_t,
                         std::conditional_t<sizeof(Number) == 4, std::uint64_t, unsigned __int128>>;
  const auto bits = [&](unsigned low_bits) {
    Sum all = static_cast<Sum>(count) * (low_bits + 1);
    for (std::size_t i = 0; i < count; ++i) all += numbers[i] >> low_bits;
    return all;
  };
  const auto mean = static_cast<std::uint64_t>((bits(0) - count) / count);
  unsigned width = mean == 0 ? 0 : static_cast<unsigned>(std::bit_width(mean)) - 1;
  if (width > most) width = most;
  Sum best = bits(width);
  for (Sum less; width > 0 && (less = bits(width - 1)) <= best; --width) best = less;
  for (Sum less; width < most && (less = bits(width + 1)) < best; ++width) best = less;
  return {width, static_cast<std::uint64_t>(best)};
}

}  // namespace tersor::kernels
