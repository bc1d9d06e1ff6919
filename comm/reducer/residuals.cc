#include "comm/reducer/residuals.h"

#include <algorithm>
#include <utility>

namespace tersor {

void Residuals::set_backend(const MemoryBackend& backend) {
  backend_ = &backend;
  entries_.clear();
}

// Owner values begin at a multiple of 64 values, for equal alignment of owner and sender values.
void Residuals::add(std::size_t count, std::size_t owned_count, std::size_t memory_count) {
  const std::size_t owner = align_up(count, 64) * dtype_bytes(dtype_);
  const std::size_t memory =
      align_up(owner + owned_count * dtype_bytes(dtype_), kWorkspaceAlignment);
  Entry entry{.parts = {Part{0, count, dtype_}, Part{owner, owned_count, dtype_},
                        Part{memory, memory_count, Dtype::kF32}},
              .memory = {}};
  for (unsigned i = 0; i < generations_; ++i) {
    entry.memory.emplace_back(memory + memory_count * sizeof(float), backend_->memory());
    backend_->clear(entry.memory.back().span(), backend_->stream());
  }
  entries_.push_back(std::move(entry));
}

ValueSpan Residuals::values(std::size_t parameter, unsigned generation, const Part& part) const {
  if (part.count == 0) return {};
  const Buffer& memory = entries_[parameter].memory[generation];
  return {memory.pointer() + part.offset, part.count, part.dtype, backend_->memory()};
}

ValueSpan Residuals::scratch(std::size_t parameter, Kind kind) {
  const Part& part = entries_[parameter].parts[kind];
  Buffer& memory = entries_[parameter].scratch[kind];
  if (memory.bytes() == 0) {
    memory = Buffer(part.count * dtype_bytes(part.dtype), backend_->memory());
    backend_->clear(memory.span(), backend_->stream());
  }
  return memory.values(part.count, part.dtype);
}

std::vector<Residuals::Version> Residuals::versions(std::size_t parameter) const {
  const Entry& entry = entries_[parameter];
  std::vector<Version> all;
  const auto add_version = [&](unsigned generation) {
    all.push_back({values(parameter, generation, entry.parts[kSender]),
                   values(parameter, generation, entry.parts[kOwner])});
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

void Residuals::clear(std::size_t parameter, const Part& part) {
  for (unsigned generation = 0; generation < generations_; ++generation) {
    const ValueSpan values = this->values(parameter, generation, part);
    backend_->clear({values.pointer(), values.bytes()}, backend_->stream());
  }
}

void Residuals::scale(std::size_t i, float factor) {
  const auto& [sender, owner, memory] = entries_[i].parts;
  if (sender.count == 0) return;
  const Part both{0, owner.offset / dtype_bytes(dtype_) + owner.count, dtype_};
  if (factor == 0) return clear(i, both);  // multiplication would keep a NaN
  for (unsigned generation = 0; generation < generations_; ++generation)
    backend_->scale(values(i, generation, both), factor, backend_->stream());
}

void Residuals::clear() {
  for (Entry& entry : entries_)
    for (const Buffer& memory : entry.memory) backend_->clear(memory.span(), backend_->stream());
  for (Entry& entry : entries_) entry.pending = false;
  take_discarded();
}

}  // namespace tersor
