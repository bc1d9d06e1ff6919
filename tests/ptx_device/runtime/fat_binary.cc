// See fat_binary.h.
#include "tests/ptx_device/runtime/fat_binary.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace ptx {
namespace {

constexpr std::uint32_t kMagic = 0xBA55ED50u;
constexpr std::uint16_t kPtx = 1;
constexpr std::uint64_t kCompressed = 0xf000;  // flags of both kinds of compression

struct Header {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;
};
static_assert(sizeof(Header) == 16);

struct EntryHeader {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t unused[3];
  std::uint32_t capability;
  std::uint64_t also_unused, flags;
};
static_assert(sizeof(EntryHeader) == 48);

template <class T>
T read(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace

std::string best_ptx(const char* fat_binary, int capability) {
  const auto header = read<Header>(fat_binary);
  if (header.magic != kMagic) {
    std::fprintf(stderr, "ptx-device: a fat binary of an unknown kind\n");
    return {};
  }
  std::string text;
  std::uint32_t best = 0;
  bool is_compressed = false;
  const char* at = fat_binary + header.header_bytes;
  for (const char* end = at + header.bytes; at < end;) {
    const auto entry = read<EntryHeader>(at);
    const char* begin = at + entry.header_bytes;
    at = begin + entry.bytes;
    if (entry.kind != kPtx) continue;
    if ((entry.flags & kCompressed) != 0) {
      is_compressed = true;
    } else if (static_cast<int>(entry.capability) <= capability && entry.capability >= best) {
      best = entry.capability;
      text.assign(begin, strnlen(begin, entry.bytes));
    }
  }
  if (text.empty() && is_compressed)
    std::fprintf(stderr, "ptx-device: the program's PTX is compressed: build with --no-compress\n");
  return text;
}

}  // namespace ptx
