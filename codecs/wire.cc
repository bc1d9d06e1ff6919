// Reads what every frame begins with.

#include <tersor/wire.h>

#include <tersor/error.h>

#include <bit>
#include <cstring>
#include <string>

namespace tersor {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

FrameHeader read_frame_header(ConstByteSpan frame) {
  FrameHeader header;
  if (frame.size() < sizeof header)
    throw WireError("frame is truncated: " + std::to_string(frame.size()) + " bytes, its header " +
                    "takes " + std::to_string(sizeof header));
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != kFrameMagic)
    throw WireError("frame magic is " + std::to_string(header.magic) + ", expected " +
                    std::to_string(kFrameMagic) + ": these bytes are no frame");
  if (header.version != kFormatVersion)
    throw WireError("frame version is " + std::to_string(header.version) + ", expected " +
                    std::to_string(kFormatVersion) + ": written by another version of Tersor");
  return header;
}

std::size_t frame_bytes(ConstByteSpan frame) {
  const FrameHeader header = read_frame_header(frame);
  const std::size_t room = frame.size() - sizeof header;
  if (header.payload_bytes > room)
    throw WireError("frame payload_bytes is " + std::to_string(header.payload_bytes) +
                    ", but only " + std::to_string(room) + " bytes follow the header");
  return sizeof header + header.payload_bytes;
}

}  // namespace tersor
