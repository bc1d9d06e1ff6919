// Checks and applies weight deltas: reads the frame around the blocks of kernels/delta.

#include <tersor/delta.h>

#include "codecs/delta_frame.h"
#include "codecs/delta_tensors.h"

#include <tersor/align.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

namespace tersor {
namespace {

using namespace encoding;
using kernels::DeltaBlock;
using kernels::DeltaScratch;

/// Calls visit(block, entry in sizes, words, scratch) for all blocks on the available
/// threads.
template <typename Visitor>
void for_each_block(const MatchedTensor& matched, Threads* threads, DeltaScratchPool& scratch_pool,
                    const Visitor& visit) {
  const DeltaView& view = matched.view;
  const DeltaBlock whole{
      view.tensor.dtype, {view.head.classes, view.head.first_class}, 0, view.count, matched.values};
  parallel_for(view.head.blocks, threads,
               [&](std::size_t task, std::size_t begin, std::size_t end) {
                 const std::byte* words = view.blocks + 4 * view.first_word(begin);
                 for (std::size_t i = begin; i < end; ++i) {
                   visit(block_at(whole, i), view.size(i), words, scratch_pool.of(task));
                   words += 4 * view.words(i);
                 }
               });
}

/// Adds up the values and the changes of all blocks without writing. Calls keep(block, words,
/// changes, scratch) for each block with changes, in one thread at a time. `words` is null for a
/// coded block.
template <typename Keep>
void verify(const MatchedTensor& matched, const DeltaOptions& options,
            DeltaScratchPool& scratch_pool, const Keep& keep) {
  const DeltaView& view = matched.view;
  const std::size_t width = delta_dtype_bytes(view.tensor.dtype);
  const bool reads_base = options.base == DeltaBase::kCheck;
  std::mutex mutex;
  std::uint64_t base_sum = 0, sum = 0, changed = 0;
  const char* fault = nullptr;
  for_each_block(matched, options.threads, scratch_pool,
                 [&](const DeltaBlock& block, std::uint16_t size, const std::byte* words,
                     DeltaScratch& scratch) {
                   // The checksum loads the block into the cache for the decoder.
                   const std::uint64_t block_sum = reads_base ? checksum_of(block, block.base) : 0;
                   const bool plain = size == kDeltaPlain;
                   kernels::DeltaChanges changes;
                   if (plain)
                     changes = plain_changes(block, words, width);
                   else if (size != 0)
                     changes = kernels::delta_decode_block(block, words, size, scratch);
                   const std::scoped_lock lock(mutex);
                   base_sum = kernels::add_checksums(base_sum, block_sum);
                   if (changes.fault != nullptr) fault = changes.fault;
                   sum = kernels::add_checksums(sum, changes.sum);
                   changed += changes.changed;
                   if (fault == nullptr && size != 0)
                     keep(block, plain ? words : nullptr, changes, scratch);
                 });
  verify_sums(view, reads_base ? std::optional(base_sum) : std::nullopt, sum, changed, fault);
}

/// Returns the places in a record of `count` values.
const std::uint16_t* places_of(const std::byte* record, std::size_t count, std::size_t width) {
  return reinterpret_cast<const std::uint16_t*>(record +
                                                align_up(count * width, sizeof(std::uint16_t)));
}

}  // namespace

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
  DeltaScratchPool scratch_pool(options.threads);
  for (const MatchedTensor& matched : match(tensors, base, delta))
    verify(matched, options, scratch_pool, [](const auto&...) {});
}

PreparedDelta::PreparedDelta(std::span<const DeltaTensor> tensors,
                             std::span<const ConstByteSpan> base, ConstByteSpan delta,
                             const DeltaOptions& options)
    : tensors_(tensors.begin(), tensors.end()) {
  const std::vector<MatchedTensor> all = match(tensors, base, delta);
  std::size_t most = 0;
  for (const MatchedTensor& matched : all) {
    const DeltaView& view = matched.view;
    const std::size_t width = delta_dtype_bytes(view.tensor.dtype);
    const std::size_t list_bytes = view.head.changed * (width + sizeof(std::uint16_t));
    most += std::min(list_bytes + view.head.blocks * sizeof(std::uint64_t), view.count * width);
  }
  records_.reserve(most);  // avoids copies of the records
  DeltaScratchPool scratch_pool(options.threads);
  for (const MatchedTensor& matched : all) {
    const auto tensor = static_cast<std::size_t>(matched.tensor - tensors.data());
    const std::size_t width = delta_dtype_bytes(matched.tensor->dtype);
    verify(matched, options, scratch_pool,
           [&](const DeltaBlock& block, const std::byte* words,
               const kernels::DeltaChanges& changes, const DeltaScratch& scratch) {
             const std::size_t count = changes.changed, all_bytes = block.count * width;
             const std::size_t places = align_up(count * width, sizeof *scratch.places);
             const std::size_t list_bytes = places + count * sizeof *scratch.places;
             const bool whole = words != nullptr || list_bytes >= all_bytes;
             const std::size_t record = align_up(records_.size(), sizeof(std::uint64_t));
             blocks_.push_back(
                 {tensor, block.first * width, whole ? block.count : count, record, whole});
             records_.resize(record + (whole ? all_bytes : list_bytes));
             std::byte* const to = records_.data() + record;
             const auto* new_values = reinterpret_cast<const std::byte*>(scratch.new_values);
             if (!whole) {
               std::memcpy(to, new_values, count * width);
               std::memcpy(to + places, scratch.places, count * sizeof *scratch.places);
               return;
             }
             std::memcpy(to, words != nullptr ? words : block.base, all_bytes);
             if (words == nullptr)
               kernels::delta_write(width, count, scratch.places, new_values, to);
           });
  }
}

void PreparedDelta::write(std::span<const ByteSpan> values, Threads* threads) {
  check_list(std::span<const DeltaTensor>(tensors_), values);
  check_overlap(tensors_, values);
  if (!blocks_.empty() && blocks_.front().written)
    throw InvalidArgumentError("delta: the prepared delta was written before");
  parallel_for(blocks_.size(), threads, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      Block& block = blocks_[i];
      const unsigned width = delta_dtype_bytes(tensors_[block.tensor].dtype);
      std::byte* const to = values[block.tensor].data() + block.first_byte;
      std::byte* const record = records_.data() + block.record;
      if (block.whole)
        std::swap_ranges(to, to + block.count * width, record);
      else
        kernels::delta_exchange(width, block.count, places_of(record, block.count, width), record,
                                to);
      block.written = true;
    }
  });
}

void PreparedDelta::undo(std::span<const ByteSpan> values) const {
  check_list(std::span<const DeltaTensor>(tensors_), values);
  for (const Block& block : blocks_) {
    if (!block.written) continue;
    const unsigned width = delta_dtype_bytes(tensors_[block.tensor].dtype);
    std::byte* const to = values[block.tensor].data() + block.first_byte;
    const std::byte* const record = records_.data() + block.record;
    if (block.whole)
      std::memcpy(to, record, block.count * width);
    else
      kernels::delta_write(width, block.count, places_of(record, block.count, width), record, to);
  }
}

std::size_t PreparedDelta::bytes() const {
  return records_.size() + blocks_.size() * sizeof(Block);
}

void delta_apply(std::span<const DeltaTensor> tensors, std::span<const ByteSpan> values,
                 ConstByteSpan delta, const DeltaOptions& options) {
  check_list(tensors, values);
  check_overlap(tensors, values);
  const std::vector<ConstByteSpan> base(values.begin(), values.end());
  PreparedDelta(tensors, base, delta, options).write(values, options.threads);
}

}  // namespace tersor
