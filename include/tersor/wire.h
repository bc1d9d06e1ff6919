// The frame of the wire format: a 64-byte header, then the payload's sections at multiples of 16
// bytes. All numbers are little-endian. docs/reference/wire-format.md specifies the format; C++
// code reads the format from this header.
#pragma once

#include <tersor/dtype.h>
#include <tersor/span.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tersor {

/// The first word of every frame.
inline constexpr std::uint32_t kFrameMagic = 0x53524554;  // reads "TERS" as bytes
/// The version of the wire format.
inline constexpr std::uint16_t kFormatVersion = 3;
/// The alignment of a payload's sections, in bytes.
inline constexpr std::size_t kSectionAlignment = 16;

/// Bits of FrameHeader::flags. Codecs define their own flags from bit kCodecFlagShift on.
enum FrameFlag : std::uint16_t { kFrameHasChecksum = 1 };
/// The first bit of a codec's own flags.
inline constexpr unsigned kCodecFlagShift = 8;

/// The header of every frame. A frame holds all segments of one codec and dtype from one rank to
/// one peer in one exchange.
struct FrameHeader {
  std::uint32_t magic = kFrameMagic;       ///< kFrameMagic
  std::uint16_t version = kFormatVersion;  ///< kFormatVersion
  std::uint16_t codec_id = 0;              ///< number of the codec
  std::uint8_t dtype = 0;                  ///< the gradient's dtype
  std::uint8_t round = 0;                  ///< index of the codec's round, from 0
  std::uint16_t flags = 0;                 ///< see FrameFlag
  std::uint32_t segments = 0;              ///< number of segments
  std::uint64_t count = 0;                 ///< values of all segments together
  std::uint64_t first_index = 0;    ///< index of the first segment's first value in its parameter
  std::uint64_t payload_bytes = 0;  ///< bytes after the header, without unused capacity
  std::uint64_t signature = 0;      ///< signature of the collective; 0 outside a collective
  std::uint8_t parameters[8] = {};  ///< codec-specific parameters, e.g. a density
  std::uint64_t checksum = 0;       ///< 0 if kFrameHasChecksum is not set
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);
static_assert(offsetof(FrameHeader, count) == 16 && offsetof(FrameHeader, checksum) == 56);

/// Selects whether frames carry a checksum: a sum over the words of header and payload in the field
/// of 2^61 - 1 elements (docs/reference/wire-format.md). The checksum detects every change of up to
/// two bits. Other changes escape with probability 2^-31.
enum class Checksum : std::uint8_t { kOn, kOff };

/// Reads the header of a frame. Throws WireError if the frame is shorter than a header, or if the
/// magic or the version differs. Thread-safe.
FrameHeader read_frame_header(ConstByteSpan frame);

/// Returns the bytes of header and payload of the frame at the start of `frame`. Later bytes are
/// ignored. Throws WireError if the header is invalid or claims more bytes than `frame` has.
/// Thread-safe.
std::size_t frame_bytes(ConstByteSpan frame);

/// Faults in frames that calls on a device detected. Such calls write NaNs in place of sums. The
/// struct lies in device memory. The caller zeroes, reads and clears the struct; see
/// Execution::fault.
struct FrameFault {
  /// The part of a frame that is wrong.
  enum Kind : std::uint32_t { kNone, kHeader, kChecksum, kIndices, kStep };

  /// Number of thread blocks that found a fault; all other fields describe the first fault.
  std::uint32_t times = 0;
  std::uint32_t kind = kNone;  ///< a Kind
  std::uint32_t frame = 0;     ///< index of the frame in the call's list
  std::uint32_t frames = 0;    ///< length of the call's list
  std::uint64_t detail = 0;    ///< the expected checksum or step, or the segment with bad indices
  FrameHeader found = {};      ///< the header of the frame
  FrameHeader expected = {};   ///< the header that the call expects
};
static_assert(sizeof(FrameFault) == 152 && std::is_trivially_copyable_v<FrameFault>);

/// `fault` is a copy in host memory. Throws the WireError that a host call would have thrown;
/// returns if there was no fault. Thread-safe.
void throw_if_faulty(const FrameFault& fault);

/// A 64-bit FNV-1a hash of the values on which ranks must agree. If two ranks' collectives differ
/// in a value passed to `add`, their signatures differ, and the transport reports the mismatch.
class Signature {
 public:
  /// Starts with the version of the wire format.
  Signature() { add(kFormatVersion); }

  /// Adds the little-endian bytes of an integer or an enumerator.
  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) Signature& add(T value) {
    auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i, bits >>= 8) add_byte(bits & 0xff);
    return *this;
  }

  /// Adds the characters and a terminating NUL.
  Signature& add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
    add_byte(0);
    return *this;
  }

  /// Returns the hash of all values added so far.
  std::uint64_t value() const { return hash_; }

 private:
  void add_byte(std::uint64_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }

  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace tersor
