// Frames as codecs see them: making headers, sealing what was written, and checking what came in,
// field by field, before a byte of the payload is believed.
#pragma once

#include <tersor/codec.h>
#include <tersor/threads.h>
#include <tersor/wire.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::encoding {

/// What a codec says of its payload in the header, beside what all codecs say.
struct PayloadFormat {
  std::size_t bytes = 0;
  std::uint16_t codec_flags = 0;  ///< in place, i.e. shifted by kCodecFlagShift
  std::array<std::uint8_t, 8> parameters = {};
};

/// What only the encoder knows of a frame stands in the first so many bytes of its `parameters`: a
/// step, or nothing. A reader's plan does not say it, but all frames of one call agree in it.
enum class Carried : std::size_t { kNothing = 0, kStep = 4 };

/// The step that a header carries, or is to carry.
std::uint32_t carried_step(const FrameHeader& header);
void carry_step(FrameHeader& header, std::uint32_t step);

/// All of `parameters` as a number, and what the codec's own flags say.
PayloadFormat format_of_number(double number, unsigned codec_flags);
double carried_number(const FrameHeader& header);
inline unsigned codec_flags(const FrameHeader& header) { return header.flags >> kCodecFlagShift; }

/// What a frame is about.
struct FrameContent {
  const Codec& codec;
  std::span<const Segment> segments;
  Dtype dtype = Dtype::kF32;  ///< of the gradient
  const FrameIdentity& identity;
};

/// The header that such a frame has, but for the checksum.
FrameHeader frame_header(const FrameContent& content, const PayloadFormat& payload);

/// Where the payload lies.
inline ByteSpan payload_of(ByteSpan frame) { return frame.subspan(sizeof(FrameHeader)); }
inline ConstByteSpan payload_of(ConstByteSpan frame) { return frame.subspan(sizeof(FrameHeader)); }

inline bool has_checksum(const FrameHeader& header) {
  return (header.flags & kFrameHasChecksum) != 0;
}

/// Whether a payload is so short that it is summed at once with its header, when a frame is sealed
/// or checked: beginning and ending sums takes longer than adding up its words.
constexpr bool is_short(std::size_t payload_bytes) { return payload_bytes <= 4096; }

/// The part in a checksum of a payload that is not short, which any thread may add to.
class PayloadSum {
 public:
  /// The words in `count` bytes, which are those of the payload from byte `begin` on.
  void add(const std::byte* bytes, std::size_t begin, std::size_t count);
  void add(std::uint64_t part);

  std::uint64_t value() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> sum_{0};
};

/// Writes the header in front of a payload that is there, with its checksum where it has one: of a
/// payload whose sum is known, or is still to be made.
void seal_frame(FrameHeader header, ByteSpan frame, const PayloadSum& sum);
void seal_frame(const FrameHeader& header, ByteSpan frame, Threads* threads);

/// Throws WireError that names field, value, what was expected and, of several, the frame, where
/// one is too short, has another header than `expected`, carries something else than the first, or
/// has another checksum than its own.
void check_frames(const FrameHeader& expected, std::span<const ConstByteSpan> frames,
                  Threads* threads);

/// The same but for the checksums of frames that have one.
void check_headers(const FrameHeader& expected, std::span<const ConstByteSpan> frames,
                   Carried carried = Carried::kNothing);
/// Throws WireError where a frame, of any codec, has another checksum than its own; the second
/// where one of several does that have one, and names it.
void check_checksum(ConstByteSpan frame, Threads* threads);
void check_checksums(std::span<const ConstByteSpan> frames, Threads* threads);
/// The checksums, once the payloads are summed.
void check_checksums(std::span<const ConstByteSpan> frames, std::span<const PayloadSum> sums);

/// Throws WireError that names a frame of several and its segment.
[[noreturn]] void throw_wrong_places(std::size_t frame, std::size_t frames, std::size_t segment,
                                     std::string_view what);

/// Writes zeros to the bytes [begin, end) of a payload: the padding of a section.
void pad_section(ByteSpan payload, std::size_t begin, std::size_t end);

}  // namespace tersor::encoding
