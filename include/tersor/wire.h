// The wire format's frame: a header of 64 bytes, then the payload's sections at multiples of 16
// bytes. docs/wire-format.md is the promise; this header is where C++ reads it. All numbers
// little-endian.
#pragma once

#include <tersor/dtype.h>
#include <tersor/span.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tersor {

inline constexpr std::uint32_t kFrameMagic = 0x53524554;  // "TERS" read as bytes
inline constexpr std::uint16_t kFormatVersion = 3;
inline constexpr std::size_t kSectionAlignment = 16;

/// Bits of FrameHeader::flags. Codecs define theirs from kCodecFlagShift on.
enum FrameFlag : std::uint16_t { kFrameHasChecksum = 1 };
inline constexpr unsigned kCodecFlagShift = 8;

/// What stands before every payload. A frame holds all segments of one codec and dtype that one
/// rank sends to one peer in one exchange.
struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint16_t version = kFormatVersion;
  std::uint16_t codec_id = 0;
  std::uint8_t dtype = 0;  ///< of the gradient
  std::uint8_t round = 0;  ///< of a codec that needs several
  std::uint16_t flags = 0;
  std::uint32_t segments = 0;
  std::uint64_t count = 0;          ///< values of all segments
  std::uint64_t first_index = 0;    ///< of the first segment in its parameter
  std::uint64_t payload_bytes = 0;  ///< true bytes behind the header
  std::uint64_t signature = 0;      ///< of the collective; 0 outside of one
  std::uint8_t parameters[8] = {};  ///< the codec's own, e.g. a density
  std::uint64_t checksum = 0;       ///< 0 where kFrameHasChecksum is not set
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);
static_assert(offsetof(FrameHeader, count) == 16 && offsetof(FrameHeader, checksum) == 56);

/// Whether frames carry a checksum: a sum over the words of header and payload in the field of
/// 2^61 - 1 elements (docs/wire-format.md). Two flipped bits are always found, and any other change
/// but for one in 2^31.
enum class Checksum : std::uint8_t { kOn, kOff };

/// Reads the header of a frame. Throws WireError where the bytes are too few, or the magic or the
/// version is another.
FrameHeader read_frame_header(ConstByteSpan frame);

/// True bytes of a frame (header and payload) that lies in `frame`, which may be longer.
/// Throws WireError where the header does not fit or claims more than there is.
std::size_t frame_bytes(ConstByteSpan frame);

/// What calls on a device found wrong with frames (they write NaNs instead of sums). Lies in device
/// memory, zeros at first, and is the caller's to read and to clear; see Execution::fault.
struct FrameFault {
  enum Kind : std::uint32_t { kNone, kHeader, kChecksum, kPlaces, kStep };

  std::uint32_t times = 0;  ///< how often a block of threads met a fault; the rest is of the first
  std::uint32_t kind = kNone;
  std::uint32_t frame = 0;   ///< its place in the call's list
  std::uint32_t frames = 0;  ///< how many the list has
  std::uint64_t detail = 0;  ///< the checksum or step that was expected, or the places' segment
  FrameHeader found = {};
  FrameHeader expected = {};
};
static_assert(sizeof(FrameFault) == 152 && std::is_trivially_copyable_v<FrameFault>);

/// Takes a copy on the host. Throws WireError that says what a host call would have said; returns
/// where there was no fault.
void throw_if_faulty(const FrameFault& fault);

/// FNV-1a (64 bits) over what ranks must agree on. Two collectives that differ in anything that
/// `add` was given differ here, and the transport tells the ranks so.
class Signature {
 public:
  Signature() { add(kFormatVersion); }

  /// Adds the little-endian bytes of a number or an enumerator.
  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) Signature& add(T value) {
    auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i, bits >>= 8) add_byte(bits & 0xff);
    return *this;
  }

  /// Adds the characters and a NUL.
  Signature& add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
    add_byte(0);
    return *this;
  }

  std::uint64_t value() const { return hash_; }

 private:
  void add_byte(std::uint64_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }

  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace tersor
