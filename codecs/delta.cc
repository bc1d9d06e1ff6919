// Weight deltas: reads and writes the frame around the blocks of kernels/delta.

#include <tersor/delta.h>

#include "codecs/apart.h"
#include "codecs/delta_frame.h"
#include "codecs/slices.h"

#include <tersor/align.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace tersor {
namespace {

using namespace encoding;
using kernels::DeltaBlock;
using kernels::DeltaClasses;
using kernels::DeltaScratch;

constexpr std::size_t kSampledBlocks = 64;                    // classes come from a block of these
constexpr std::size_t kChecksumPiece = std::size_t{1} << 20;  // bytes per task

std::string quoted(const DeltaTensor& tensor) { return "tensor \"" + tensor.name + "\""; }

std::string shape_text(const DeltaTensor& tensor) {
  std::string text = std::string(delta_dtype_name(tensor.dtype)) + " (";
  for (const std::uint64_t& dimension : tensor.shape)
    text += (&dimension == tensor.shape.data() ? "" : ", ") + std::to_string(dimension);
  return text + ")";
}

void check_bytes(const DeltaTensor& tensor, const std::byte* bytes, std::size_t size) {
  const unsigned width = delta_dtype_bytes(tensor.dtype);
  const auto count = delta_count_of(tensor);
  if (!count || *count * width != size)
    throw InvalidArgumentError("delta: " + quoted(tensor) + " is " + shape_text(tensor) +
                               ", but its values have " + std::to_string(size) + " bytes");
  if (reinterpret_cast<std::uintptr_t>(bytes) % width != 0)
    throw InvalidArgumentError("delta: the values of " + quoted(tensor) +
                               " are not aligned to their type");
}

template <typename Bytes>
void check_list(std::span<const DeltaTensor> tensors, std::span<const Bytes> values) {
  if (values.size() != tensors.size())
    throw InvalidArgumentError("delta: " + std::to_string(values.size()) + " spans for " +
                               std::to_string(tensors.size()) + " tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i)
    check_bytes(tensors[i], values[i].data(), values[i].size());
}

std::uint64_t checksum_of(const std::byte* bytes, std::size_t count, Threads* threads) {
  std::atomic<std::uint64_t> sum{0};
  share(ceil_div(count, kChecksumPiece), threads,
        [&](std::size_t, std::size_t begin, std::size_t end) {
          const std::size_t first = begin * kChecksumPiece;
          const std::size_t last = std::min(count, end * kChecksumPiece);
          const std::uint64_t part = kernels::delta_checksum(bytes + first, last - first, first);
          for (std::uint64_t old = sum;
               !sum.compare_exchange_weak(old, kernels::add_checksums(old, part));) {
          }
        });
  return sum;
}

/// The bits of a class' list of places: the best width of evenly spread places.
std::uint64_t cost_of(std::uint64_t changed, std::uint64_t values) {
  std::uint64_t best = std::numeric_limits<std::uint64_t>::max();
  for (unsigned width = 0; width <= 13; ++width)
    best = std::min(best, changed * (1 + width) + (values >> width));
  return best;
}

/// Chooses classes of exponents by exact integers, so every machine chooses the same.
class ClassChoice {
 public:
  ClassChoice(const DeltaTensor& tensor, const DeltaBlock& whole, const std::byte* now)
      : values_((std::size_t{1} << delta_exponent_bits(tensor.dtype)) + 1), changed_(values_) {
    const unsigned width = delta_dtype_bytes(tensor.dtype);
    for (std::size_t first = 0; first < whole.count; first += kSampledBlocks * kDeltaBlock) {
      DeltaBlock block = whole;
      block.base += first * width;
      block.count = std::min(kDeltaBlock, whole.count - first);
      kernels::delta_count(block, now + first * width, values_.data() + 1, changed_.data() + 1);
      ++blocks_;
    }
    for (std::size_t e = 1; e < values_.size(); ++e) {
      values_[e] += values_[e - 1];
      changed_[e] += changed_[e - 1];
    }
  }

  /// Returns the best classes, and their bits in the sample.
  std::pair<DeltaClasses, std::uint64_t> best(unsigned count) const {
    const auto last = static_cast<unsigned>(values_.size()) - 1;
    std::pair<DeltaClasses, std::uint64_t> best{{count, 0}, ~std::uint64_t{0}};
    for (unsigned first = count == 1 ? 0 : 1; first < (count == 1 ? 1 : last); ++first) {
      std::uint64_t bits = 19 * count * blocks_;
      for (unsigned c = 0; c < count; ++c) {
        const unsigned begin = c == 0 ? 0 : std::min(first + c - 1, last);
        const unsigned end = c + 1 == count ? last : std::min(first + c, last);
        bits += cost_of(changed_[end] - changed_[begin], values_[end] - values_[begin]);
      }
      if (bits < best.second) best = {{count, first}, bits};
    }
    return best;
  }

 private:
  std::vector<std::uint64_t> values_, changed_;  // of smaller exponents
  std::uint64_t blocks_ = 0;
};

DeltaClasses classes_of(const DeltaTensor& tensor, const DeltaBlock& whole, const std::byte* now,
                        unsigned wanted) {
  const unsigned most = delta_exponent_bits(tensor.dtype) == 0 ? 1
                        : delta_dtype_bytes(tensor.dtype) == 1 ? 2
                                                               : 4;
  const ClassChoice choice(tensor, whole, now);
  if (wanted != 0) return choice.best(std::min(wanted, most)).first;
  auto best = choice.best(1);
  for (unsigned count = 2; count <= most; count *= 2)
    if (const auto next = choice.best(count); next.second < best.second) best = next;
  return best.first;
}

/// Returns block `index` of a tensor.
DeltaBlock block_at(const DeltaBlock& whole, std::size_t index) {
  DeltaBlock block = whole;
  block.first = index * kDeltaBlock;
  block.count = std::min<std::size_t>(kDeltaBlock, whole.count - block.first);
  block.base += block.first * delta_dtype_bytes(whole.dtype);
  return block;
}

void append(std::vector<std::byte>& to, const void* bytes, std::size_t count) {
  const auto* first = static_cast<const std::byte*>(bytes);
  to.insert(to.end(), first, first + count);
}

void append_tensor(const DeltaTensor& tensor, const std::byte* base, const std::byte* now,
                   const DeltaOptions& options, std::vector<std::byte>& out) {
  const std::size_t count = *delta_count_of(tensor), width = delta_dtype_bytes(tensor.dtype);
  DeltaBlock whole{tensor.dtype, {}, 0, count, base};
  whole.classes = classes_of(tensor, whole, now, options.classes);
  const std::size_t blocks = ceil_div(count, kDeltaBlock);
  std::vector<std::uint16_t> sizes(blocks);
  std::vector<std::vector<std::byte>> parts(
      most_tasks(options.threads == nullptr ? 1 : options.threads->count()));
  std::atomic<std::uint64_t> changed{0};
  share(blocks, options.threads, [&](std::size_t task, std::size_t begin, std::size_t end) {
    const auto scratch = std::make_unique_for_overwrite<DeltaScratch>();
    for (std::size_t i = begin; i < end; ++i) {
      const DeltaBlock block = block_at(whole, i);
      const std::byte* news = now + block.first * width;
      const kernels::DeltaCoded coded = kernels::delta_encode_block(block, news, *scratch);
      sizes[i] = coded.size;
      changed += coded.changed;
      if (coded.size != kDeltaPlain) {
        append(parts[task], scratch->words, std::size_t{4} * coded.size);
        continue;
      }
      append(parts[task], news, block.count * width);
      parts[task].resize(align_up(parts[task].size(), 4));
    }
  });
  const DeltaHead head{.classes = static_cast<std::uint8_t>(whole.classes.count),
                       .first_class = static_cast<std::uint16_t>(whole.classes.first),
                       .blocks = static_cast<std::uint32_t>(blocks),
                       .changed = changed,
                       .base_checksum = checksum_of(base, count * width, options.threads),
                       .result_checksum = checksum_of(now, count * width, options.threads)};
  const auto pad = [&] { out.resize(align_up(out.size(), kSectionAlignment)); };
  append(out, &head, sizeof head);
  append(out, sizes.data(), blocks * sizeof(std::uint16_t));
  pad();
  std::uint64_t words = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    if (i != 0 && i % kDeltaBlocksAStart == 0) append(out, &words, sizeof words);
    words += delta_words(sizes[i], block_at(whole, i).count * width);
  }
  pad();
  for (const std::vector<std::byte>& part : parts) append(out, part.data(), part.size());
  pad();
}

/// A tensor of a delta, and the caller's tensor with this name.
struct Matched {
  DeltaView view;
  const DeltaTensor* tensor;
  const std::byte* values;
};

/// Finds the caller's tensor of each tensor in the delta.
std::vector<Matched> match(std::span<const DeltaTensor> tensors,
                           std::span<const ConstByteSpan> values, ConstByteSpan delta) {
  check_list(tensors, values);
  std::vector<DeltaView> views = read_delta(delta);
  std::unordered_map<std::string_view, std::size_t> indices;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!indices.emplace(tensors[i].name, i).second)
      throw InvalidArgumentError("delta: two tensors have the name \"" + tensors[i].name + "\"");
  std::vector<Matched> matched;
  for (DeltaView& view : views) {
    const DeltaTensor& own = view.tensor;
    const auto found = indices.find(own.name);
    if (found == indices.end())
      throw InvalidArgumentError(
          "delta: the delta belongs to another model: these weights have no " + quoted(own));
    const DeltaTensor& tensor = tensors[found->second];
    if (own.dtype != tensor.dtype || own.shape != tensor.shape)
      throw InvalidArgumentError("delta: the delta belongs to another model: " + quoted(own) +
                                 " is " + shape_text(own) + " in the delta, but " +
                                 shape_text(tensor) + " in these weights");
    matched.push_back({std::move(view), &tensor, values[found->second].data()});
    indices.erase(found);
  }
  for (const DeltaTensor& tensor : tensors)
    if (indices.contains(tensor.name))
      throw InvalidArgumentError("delta: the delta belongs to another model: the delta has no " +
                                 quoted(tensor));
  return matched;
}

/// Calls visit(block, its entry in sizes, its words, scratch) on the available threads.
template <typename Visitor>
void for_each_block(const Matched& matched, Threads* threads, const Visitor& visit) {
  const DeltaView& view = matched.view;
  const DeltaBlock whole{
      view.tensor.dtype, {view.head.classes, view.head.first_class}, 0, view.count, matched.values};
  share(view.head.blocks, threads, [&](std::size_t, std::size_t begin, std::size_t end) {
    const auto scratch = std::make_unique_for_overwrite<DeltaScratch>();
    const std::byte* words = view.blocks + 4 * view.first_word(begin);
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint16_t size = view.size(i);
      if (size != 0) visit(block_at(whole, i), size, words, *scratch);
      words += 4 * view.words(i);
    }
  });
}

/// Adds up the changes of all blocks without writing.
void prove(const Matched& matched, const DeltaOptions& options) {
  const DeltaView& view = matched.view;
  const std::size_t width = delta_dtype_bytes(view.tensor.dtype);
  if (options.base == DeltaBase::kCheck &&
      checksum_of(matched.values, view.count * width, options.threads) != view.head.base_checksum)
    throw BaseMismatchError("delta: " + quoted(view.tensor) +
                            " is not the base of this delta: its checksum differs. Apply the "
                            "missing deltas first, or load a full copy");
  std::mutex mutex;
  std::uint64_t sum = view.head.base_checksum, changed = 0;
  const char* fault = nullptr;
  for_each_block(matched, options.threads,
                 [&](const DeltaBlock& block, std::uint16_t size, const std::byte* words,
                     DeltaScratch& scratch) {
                   const kernels::DeltaChanges changes =
                       size == kDeltaPlain
                           ? plain_changes(block, words, width)
                           : kernels::delta_decode_block(block, words, size, nullptr, scratch);
                   const std::scoped_lock lock(mutex);
                   if (changes.fault != nullptr) fault = changes.fault;
                   sum = kernels::add_checksums(sum, changes.sum);
                   changed += changes.changed;
                 });
  if (fault == nullptr && changed != view.head.changed) fault = "its counts do not add up";
  if (fault == nullptr && sum != view.head.result_checksum)
    fault = "the changes do not give the checksum of the result";
  if (fault != nullptr) throw WireError("delta: " + quoted(view.tensor) + ": " + fault);
}

std::vector<Matched> checked(std::span<const DeltaTensor> tensors,
                             std::span<const ConstByteSpan> values, ConstByteSpan delta,
                             const DeltaOptions& options) {
  std::vector<Matched> all = match(tensors, values, delta);
  for (const Matched& matched : all) prove(matched, options);
  return all;
}

}  // namespace

std::string_view delta_dtype_name(DeltaDtype dtype) {
  constexpr std::string_view kNames[] = {"f32",  "bf16", "f16", "f64", "e4m3",
                                         "e5m2", "i8",   "i16", "i32", "i64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

std::vector<std::byte> delta_encode(std::span<const DeltaTensor> tensors,
                                    std::span<const ConstByteSpan> base,
                                    std::span<const ConstByteSpan> now,
                                    const DeltaOptions& options) {
  if (!(options.classes <= 2 || options.classes == 4))
    throw InvalidArgumentError("delta: classes is " + std::to_string(options.classes) +
                               ": give 1, 2, 4, or 0 for the fewest bytes");
  check_list(tensors, base);
  check_list(tensors, now);
  std::vector<std::byte> out = delta_directory(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    append_tensor(tensors[i], base[i].data(), now[i].data(), options, out);
  seal_delta(out);
  return out;
}

std::vector<DeltaEntry> delta_entries(ConstByteSpan delta) {
  std::vector<DeltaEntry> entries;
  for (DeltaView& view : read_delta(delta))
    entries.push_back({.tensor = std::move(view.tensor),
                       .count = view.count,
                       .changed = view.head.changed,
                       .classes = view.head.classes,
                       .bytes = view.bytes,
                       .base_checksum = view.head.base_checksum,
                       .result_checksum = view.head.result_checksum});
  return entries;
}

void delta_check(std::span<const DeltaTensor> tensors, std::span<const ConstByteSpan> base,
                 ConstByteSpan delta, const DeltaOptions& options) {
  checked(tensors, base, delta, options);
}

void delta_apply(std::span<const DeltaTensor> tensors, std::span<const ByteSpan> values,
                 ConstByteSpan delta, const DeltaOptions& options) {
  CallMemory memory;
  memory.read("the delta", delta.data(), delta.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    memory.write(i < tensors.size() ? tensors[i].name.c_str() : "", values[i].data(),
                 values[i].size());
  if (const std::string overlap = memory.overlap(); !overlap.empty())
    throw InvalidArgumentError("delta: " + overlap + ", or pass shared weights once");
  const std::vector<ConstByteSpan> base(values.begin(), values.end());
  for (const Matched& matched : checked(tensors, base, delta, options)) {
    const std::size_t width = delta_dtype_bytes(matched.view.tensor.dtype);
    std::atomic<bool> changed{false};
    for_each_block(matched, options.threads,
                   [&](const DeltaBlock& block, std::uint16_t size, const std::byte* words,
                       DeltaScratch& scratch) {
                     auto* to = const_cast<std::byte*>(block.base);
                     if (size == kDeltaPlain)
                       std::memcpy(to, words, block.count * width);
                     else if (kernels::delta_decode_block(block, words, size, to, scratch).fault)
                       changed = true;
                   });
    if (changed)
      throw BaseMismatchError("delta: another thread wrote to " + quoted(*matched.tensor) +
                              " during the call: the weights are now undefined");
  }
}

}  // namespace tersor
