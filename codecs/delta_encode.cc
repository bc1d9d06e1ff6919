// Encodes weight deltas: chooses classes of exponents, and writes the sections of each tensor.

#include "codecs/apart.h"
#include "codecs/delta_frame.h"
#include "codecs/delta_tensors.h"

#include <tersor/align.h>
#include <tersor/delta.h>
#include <tersor/error.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

namespace tersor {
namespace {

using namespace encoding;
using kernels::DeltaBlock;
using kernels::DeltaClasses;
using kernels::DeltaScratch;

constexpr std::size_t kSampleStride = 64;  // classes come from a block of these

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
    for (std::size_t first = 0; first < whole.count; first += kSampleStride * kDeltaBlock) {
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

void append_tensor(const DeltaTensor& tensor, const std::byte* base, const std::byte* now,
                   const DeltaOptions& options, DeltaScratchPool& scratch_pool,
                   std::vector<std::byte>& out) {
  const std::size_t count = *delta_count_of(tensor), width = delta_dtype_bytes(tensor.dtype);
  DeltaBlock whole{tensor.dtype, {}, 0, count, base};
  whole.classes = classes_of(tensor, whole, now, options.classes);
  const std::size_t blocks = ceil_div(count, kDeltaBlock);
  std::vector<std::uint16_t> sizes(blocks);
  std::vector<std::vector<std::byte>> parts(
      max_tasks(options.threads == nullptr ? 1 : options.threads->count()));
  DeltaHead head{.classes = static_cast<std::uint8_t>(whole.classes.count),
                 .first_class = static_cast<std::uint16_t>(whole.classes.first),
                 .blocks = static_cast<std::uint32_t>(blocks)};
  std::mutex mutex;
  parallel_for(blocks, options.threads, [&](std::size_t task, std::size_t begin, std::size_t end) {
    DeltaScratch& scratch = scratch_pool.of(task);
    std::uint64_t changed = 0, base_sum = 0, result_sum = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const DeltaBlock block = block_at(whole, i);
      const std::byte* new_values = now + block.first * width;
      const kernels::DeltaEncodedBlock coded =
          kernels::delta_encode_block(block, new_values, scratch);
      base_sum = kernels::add_checksums(base_sum, checksum_of(block, block.base));
      result_sum = kernels::add_checksums(result_sum, checksum_of(block, new_values));
      sizes[i] = coded.size;
      changed += coded.changed;
      if (coded.size != kDeltaPlain) {
        append(parts[task], scratch.words, std::size_t{4} * coded.size);
        continue;
      }
      append(parts[task], new_values, block.count * width);
      parts[task].resize(align_up(parts[task].size(), 4));
    }
    const std::scoped_lock lock(mutex);
    head.changed += changed;
    head.base_checksum = kernels::add_checksums(head.base_checksum, base_sum);
    head.result_checksum = kernels::add_checksums(head.result_checksum, result_sum);
  });
  const auto pad = [&] { out.resize(align_up(out.size(), kSectionAlignment)); };
  append(out, &head, sizeof head);
  append(out, sizes.data(), blocks * sizeof(std::uint16_t));
  pad();
  std::uint64_t words = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    if (i != 0 && i % kDeltaBlocksPerStart == 0) append(out, &words, sizeof words);
    words += delta_words(sizes[i], block_at(whole, i).count * width);
  }
  pad();
  for (const std::vector<std::byte>& part : parts) append(out, part.data(), part.size());
  pad();
}

}  // namespace

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
  DeltaScratchPool scratch_pool(options.threads);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    append_tensor(tensors[i], base[i].data(), now[i].data(), options, scratch_pool, out);
  seal_delta(out);
  return out;
}

}  // namespace tersor
