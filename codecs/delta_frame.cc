#include "codecs/delta_frame.h"

#include <tersor/error.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace tersor::encoding {
namespace {

static_assert(std::endian::native == std::endian::little, "deltas are little-endian");

[[noreturn]] void throw_damaged(const std::string& what) { throw WireError("delta: " + what); }

/// The bytes of a delta that are not read yet.
class ByteReader {
 public:
  explicit ByteReader(ConstByteSpan bytes) : bytes_(bytes), size_(bytes.size()) {}

  /// Takes the next bytes. Throws WireError if there are fewer.
  const std::byte* take(std::uint64_t count) {
    if (count > bytes_.size()) throw_damaged("the delta is too short for its contents");
    const std::byte* first = bytes_.data();
    bytes_ = bytes_.subspan(count);
    return first;
  }
  template <typename T>
  T read() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  /// Skips zeros up to a multiple of `step` from the start.
  void pad(std::size_t step) {
    const std::size_t done = position(), count = align_up(done, step) - done;
    const std::byte* zeros = take(count);
    if (!std::all_of(zeros, zeros + count, [](std::byte byte) { return byte == std::byte{0}; }))
      throw_damaged("padding is not zero");
  }
  std::size_t position() const { return size_ - bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

 private:
  ConstByteSpan bytes_;
  std::size_t size_;
};

DeltaTensor read_entry(ByteReader& directory) {
  const auto entry = directory.read<DeltaDirectoryEntry>();
  if (entry.dtype > static_cast<std::uint8_t>(DeltaDtype::kInt64) || entry.reserved != 0)
    throw_damaged("an entry of the directory has an unknown type");
  DeltaTensor tensor{.name = {}, .dtype = static_cast<DeltaDtype>(entry.dtype), .shape = {}};
  for (unsigned i = 0; i < entry.dimensions; ++i)
    tensor.shape.push_back(directory.read<std::uint64_t>());
  const auto* name = reinterpret_cast<const char*>(directory.take(entry.name_bytes));
  tensor.name.assign(name, entry.name_bytes);
  directory.pad(8);
  return tensor;
}

void read_sections(ByteReader& reader, DeltaView& view) {
  const auto throw_wrong = [&](const char* what) {
    throw_damaged("tensor \"" + view.tensor.name + "\": " + what);
  };
  const std::size_t begin = reader.position();
  const auto count = delta_count_of(view.tensor);
  view.head = reader.read<DeltaHead>();
  const DeltaHead& head = view.head;
  if (!count || head.blocks != ceil_div(*count, kDeltaBlock)) throw_wrong("wrong number of blocks");
  view.count = *count;
  const unsigned most = 1u << delta_exponent_bits(view.tensor.dtype);
  const bool known = head.classes == 1 || head.classes == 2 || head.classes == 4;
  if (!known || head.reserved != 0 || head.first_class >= most || head.changed > view.count)
    throw_wrong("its head is damaged");
  view.sizes = reader.take(sizeof(std::uint16_t) * head.blocks);
  reader.pad(kSectionAlignment);
  const std::size_t starts = head.blocks == 0 ? 0 : (head.blocks - 1) / kDeltaBlocksPerStart;
  view.starts = reader.take(sizeof(std::uint64_t) * starts);
  reader.pad(kSectionAlignment);
  std::uint64_t words = 0;
  for (std::size_t i = 0; i < head.blocks; ++i) {
    if (i != 0 && i % kDeltaBlocksPerStart == 0 &&
        view.start(i / kDeltaBlocksPerStart - 1) != words)
      throw_wrong("its starts do not match its sizes");
    if (view.size(i) > kDeltaPlain ||
        (view.size(i) != kDeltaPlain && 4 * std::size_t{view.size(i)} >= view.plain_bytes(i)))
      throw_wrong("a block is longer than its values");
    words += view.words(i);
  }
  view.blocks = reader.take(4 * words);
  reader.pad(kSectionAlignment);
  view.bytes = reader.position() - begin;
}

}  // namespace

std::optional<std::uint64_t> delta_count_of(const DeltaTensor& tensor) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;
  unsigned __int128 count = delta_dtype_bytes(tensor.dtype);
  bool fits = true;
  for (const std::uint64_t dimension : tensor.shape) {
    if (dimension == 0) return 0;
    count = fits ? count * dimension : count;
    fits = fits && count <= kMaxBytes;
  }
  if (!fits) return std::nullopt;
  return static_cast<std::uint64_t>(count) / delta_dtype_bytes(tensor.dtype);
}

kernels::DeltaChanges plain_changes(const kernels::DeltaBlock& block, const std::byte* now,
                                    std::size_t width) {
  kernels::DeltaChanges changes;
  const std::size_t bytes = block.count * width;
  for (std::size_t i = 0; i < bytes; i += width)
    changes.changed += std::memcmp(block.base + i, now + i, width) != 0;
  const std::uint64_t first = block.first * width,
                      old = kernels::delta_checksum(block.base, bytes, first);
  changes.sum = kernels::add_checksums(kernels::delta_checksum(now, bytes, first),
                                       kernels::kChecksumPrime - old);
  return changes;
}

std::vector<std::byte> delta_directory(std::span<const DeltaTensor> tensors) {
  std::vector<std::byte> out(sizeof(DeltaHeader));
  std::unordered_set<std::string_view> names;
  for (const DeltaTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw InvalidArgumentError("delta: two tensors have the name \"" + tensor.name + "\"");
    if (tensor.name.size() > std::numeric_limits<std::uint16_t>::max() || tensor.shape.size() > 255)
      throw InvalidArgumentError(
          "delta: a tensor has at most 255 dimensions and a name of at most "
          "65,535 bytes");
    const DeltaDirectoryEntry entry{.name_bytes = static_cast<std::uint16_t>(tensor.name.size()),
                                    .dtype = static_cast<std::uint8_t>(tensor.dtype),
                                    .dimensions = static_cast<std::uint8_t>(tensor.shape.size())};
    append(out, &entry, sizeof entry);
    append(out, tensor.shape.data(), tensor.shape.size() * sizeof(std::uint64_t));
    append(out, tensor.name.data(), tensor.name.size());
    out.resize(align_up(out.size(), 8));
  }
  out.resize(align_up(out.size(), kSectionAlignment));
  DeltaHeader header;
  header.directory = out.size() - sizeof header;
  header.tensors = tensors.size();
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

void seal_delta(std::span<std::byte> delta) {
  DeltaHeader header;
  std::memcpy(&header, delta.data(), sizeof header);
  header.bytes = delta.size();
  std::memcpy(delta.data(), &header, sizeof header);
  header.checksum = kernels::delta_checksum(delta.data(), delta.size(), 0);
  std::memcpy(delta.data(), &header, sizeof header);
}

std::vector<DeltaView> read_delta(ConstByteSpan delta) {
  ByteReader reader(delta);
  auto header = reader.read<DeltaHeader>();
  if (header.magic != kDeltaMagic) throw_damaged("these bytes are not a delta");
  if (header.version != kDeltaVersion)
    throw_damaged("the version is " + std::to_string(header.version) + ", expected " +
                  std::to_string(kDeltaVersion) + ": written by another version of Tersor");
  if (header.bytes != delta.size())
    throw_damaged("the delta has " + std::to_string(delta.size()) + " bytes, expected " +
                  std::to_string(header.bytes));
  if (delta.size() % kSectionAlignment != 0) throw_damaged("the length is not a multiple of 16");
  const std::uint64_t found = std::exchange(header.checksum, 0);
  const std::uint64_t after = kernels::delta_checksum(delta.data() + sizeof header,
                                                      delta.size() - sizeof header, sizeof header);
  const auto* first = reinterpret_cast<const std::byte*>(&header);
  if (found != kernels::add_checksums(kernels::delta_checksum(first, sizeof header, 0), after))
    throw_damaged("the checksum is wrong: the delta is damaged");
  const bool zeros = std::ranges::count(header.unused, 0u) == 3 && header.reserved == 0;
  if (!zeros || header.directory % kSectionAlignment != 0) throw_damaged("the header is damaged");

  ByteReader directory({reader.take(header.directory), header.directory});
  std::vector<DeltaView> views;
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < header.tensors; ++i) {
    views.emplace_back().tensor = read_entry(directory);
    if (!names.insert(views.back().tensor.name).second)
      throw_damaged("two tensors have the name \"" + views.back().tensor.name + "\"");
  }
  directory.pad(kSectionAlignment);
  if (!directory.empty()) throw_damaged("bytes follow the directory");
  for (DeltaView& view : views) read_sections(reader, view);
  if (!reader.empty()) throw_damaged("bytes follow the last tensor");
  return views;
}

}  // namespace tersor::encoding
