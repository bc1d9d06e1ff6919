#include "comm/reducer/residuals.h"

#include <algorithm>
#include <utility>

namespace tersor {
namespace {

// A multiple of 64 values, for equal alignment of owner values and sender values.
std::size_t sender_capacity(std::size_t count) { return align_up(count, 64); }

}  // namespace

void Residuals::set_backend(const MemoryBackend& backend) {
  backend_ = &backend;
  entries_.clear();
}

std::size_t Residuals::residual_bytes(const Entry& entry) const {
  return align_up((sender_capacity(entry.count) + entry.owned_count) * dtype_bytes(dtype_),
                  kWorkspaceAlignment);
}

void Residuals::add(std::size_t count, std::size_t owned_count, std::size_t memory_count) {
  Entry entry{
      .count = count, .owned_count = owned_count, .memory_count = memory_count, .memory = {}};
  const std::size_t bytes = residual_bytes(entry) + memory_count * sizeof(float);
  for (unsigned i = 0; i < generations_; ++i) {
    entry.memory.emplace_back(bytes, backend_->memory());
    backend_->clear(entry.memory.back().span(), backend_->stream());
  }
  entries_.push_back(std::move(entry));
}

ValueSpan Residuals::values(std::size_t parameter, unsigned generation, Range range) const {
  const Buffer& memory = entries_[parameter].memory[generation];
  return {memory.pointer() + range.first * dtype_bytes(dtype_), range.count, dtype_,
          backend_->memory()};
}

SegmentState Residuals::state(std::size_t parameter, Range range) const {
  if (range.count == 0) return {};
  const Entry& entry = entries_[parameter];
  return {values(parameter, entry.current, range), values(parameter, next(entry), range)};
}

Range Residuals::owned(const Entry& entry) {
  return {sender_capacity(entry.count), entry.owned_count};
}

ValueSpan Residuals::current(std::size_t parameter, Range range) const {
  if (range.count == 0) return {};
  return values(parameter, entries_[parameter].current, range);
}

ValueSpan Residuals::codec_memory(std::size_t parameter, unsigned generation,
                                  std::size_t count) const {
  const Entry& entry = entries_[parameter];
  return {entry.memory[generation].pointer() + residual_bytes(entry), count, Dtype::kF32,
          backend_->memory()};
}

SegmentMemory Residuals::memory(std::size_t parameter, std::size_t count) const {
  if (count == 0) return {};
  const Entry& entry = entries_[parameter];
  return {codec_memory(parameter, entry.current, count),
          codec_memory(parameter, next(entry), count)};
}

ValueSpan Residuals::scratch(Buffer& memory, std::size_t count, Dtype dtype) {
  if (memory.bytes() == 0) {
    memory = Buffer(count * dtype_bytes(dtype), backend_->memory());
    backend_->clear(memory.span(), backend_->stream());
  }
  return memory.values(count, dtype);
}

SegmentState Residuals::scratch_sender(std::size_t parameter) {
  Entry& entry = entries_[parameter];
  const ValueSpan zeros = scratch(entry.scratch_sender, entry.count, dtype_);
  return {zeros, zeros};
}

SegmentState Residuals::scratch_owner(std::size_t parameter) {
  Entry& entry = entries_[parameter];
  const ValueSpan zeros = scratch(entry.scratch_owner, entry.owned_count, dtype_);
  return {zeros, zeros};
}

// A later phase may use a codec with more memory.
ValueSpan Residuals::scratch_memory(std::size_t parameter, std::size_t count) {
  Entry& entry = entries_[parameter];
  return scratch(entry.scratch_memory, entry.memory_count, Dtype::kF32).subspan(0, count);
}

ValueSpan Residuals::current_memory(std::size_t parameter, std::size_t count) const {
  return count == 0 ? ValueSpan{} : codec_memory(parameter, entries_[parameter].current, count);
}

std::vector<Residuals::Version> Residuals::versions(std::size_t parameter) const {
  const Entry& entry = entries_[parameter];
  std::vector<Version> all;
  const auto add_version = [&](unsigned generation) {
    all.push_back({values(parameter, generation, {0, entry.count}),
                   values(parameter, generation, owned(entry))});
  };
  add_version(entry.current);
  if (entry.pending) add_version(other(entry));
  return all;
}

std::vector<double> Residuals::norms() const {
  std::vector<ConstValueSpan> senders;
  for (std::size_t i = 0; i < entries_.size(); ++i) senders.push_back(current_sender(i));
  return backend_->norms(senders);
}

void Residuals::commit(const std::function<bool(std::size_t)>& took_part) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    const bool takes_part = took_part(i);
    if (takes_part) entry.current = next(entry);
    entry.pending = generations_ > 1 && (takes_part || (joins_ && entry.pending));
  }
  steps_ = joins_ ? steps_ + 1 : 1;
  if (!joins_) accepted_ = false;
}

bool Residuals::discard(std::span<const std::size_t> parameters) {
  bool found = false;
  for (const std::size_t one : parameters) {
    if (one >= entries_.size() || !std::exchange(entries_[one].pending, false)) continue;
    entries_[one].current = other(entries_[one]);
    found = true;
  }
  return found;
}

void Residuals::accept(std::span<const std::size_t> parameters) {
  for (const std::size_t one : parameters)
    if (one < entries_.size()) accepted_ |= std::exchange(entries_[one].pending, false);
  take_discarded();
}

std::uint32_t Residuals::take_discarded() {
  if (std::ranges::any_of(entries_, &Entry::pending)) return 0;
  const std::uint32_t steps = std::exchange(steps_, 0);
  return std::exchange(accepted_, false) ? 0 : steps;
}

void Residuals::clear_each(const std::function<ValueSpan(unsigned)>& part) {
  for (unsigned generation = 0; generation < generations_; ++generation) {
    const ValueSpan values = part(generation);
    backend_->clear({values.pointer(), values.bytes()}, backend_->stream());
  }
}

void Residuals::clear_owner(std::size_t i) {
  clear_each([&](unsigned generation) { return values(i, generation, owned(entries_[i])); });
}

void Residuals::clear_memory(std::size_t i) {
  clear_each(
      [&](unsigned generation) { return codec_memory(i, generation, entries_[i].memory_count); });
}

void Residuals::scale(std::size_t i, float factor) {
  if (entries_[i].count == 0) return;
  const Range ranges = {0, sender_capacity(entries_[i].count) + entries_[i].owned_count};
  const auto part = [&](unsigned generation) { return values(i, generation, ranges); };
  if (factor == 0) return clear_each(part);  // multiplication would keep a NaN
  for (unsigned generation = 0; generation < generations_; ++generation)
    backend_->scale(part(generation), factor, backend_->stream());
}

void Residuals::clear() {
  for (Entry& entry : entries_)
    for (const Buffer& memory : entry.memory) backend_->clear(memory.span(), backend_->stream());
  for (Entry& entry : entries_) entry.pending = false;
  take_discarded();
}

}  // namespace tersor
