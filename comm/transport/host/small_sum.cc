// Sums and maxima of little, step by step: steps.h says in which order values are combined.
#include "comm/transport/host/ring.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "comm/transport/host/stepwise.h"

namespace tersor::host {
namespace {

/// Where non-empty parts begin that lie one behind the other; null where they do not.
std::byte* begin_of_row(std::span<const ValueSpan> parts) {
  std::byte *begin = nullptr, *end = nullptr;
  for (const ValueSpan& part : parts) {
    if (part.empty()) continue;
    if (end != nullptr && end != part.pointer()) return nullptr;
    if (begin == nullptr) begin = part.pointer();
    end = part.pointer() + part.bytes();
  }
  return begin;
}

class SmallSum final : public Stepwise {
 public:
  SmallSum(const Start& start, const RingWork& work, HostSteps steps);

  void begin() override;

 private:
  void combine(const HostStep& step, Block came) override;
  void finish() override;

  /// Calls `copy(a part's values, their place in the block)`.
  template <typename Copy>
  void for_each_part(Copy&& copy) const;

  std::vector<ValueSpan> parts_;
  Combine combine_;
  Dtype dtype_;
  Block block_;  // of all values, where they do not lie in a row
};

SmallSum::SmallSum(const Start& start, const RingWork& work, HostSteps steps)
    : Stepwise(start, std::move(steps), dtype_bytes(start.envelope.dtype)),
      parts_(work.parts.begin(), work.parts.end()),
      combine_(work.combine),
      dtype_(start.envelope.dtype) {}

template <typename Copy>
void SmallSum::for_each_part(Copy&& copy) const {
  std::byte* next = block_.writable().data();
  for (const ValueSpan& part : parts_) {
    if (!part.empty()) copy(part, next);
    next += part.bytes();
  }
}

void SmallSum::begin() {
  std::byte* row = begin_of_row(parts_);
  if (row == nullptr) {
    block_ = pool().take(envelope().count * dtype_bytes(dtype_));
    row = block_.writable().data();
    for_each_part(
        [](ValueSpan part, std::byte* place) { std::memcpy(place, part.pointer(), part.bytes()); });
  }
  lie_at(row);
  Stepwise::begin();
}

// The lower rank's values stand first, on both: of two NaNs the first one is the sum.
void SmallSum::combine(const HostStep& step, Block came) {
  std::byte* const own = at(step.taken.first);
  std::byte* const theirs = came.writable().data();
  if (step.from > channel().rank()) return combine_(own, theirs, dtype_, step.taken.count);
  combine_(theirs, own, dtype_, step.taken.count);
  std::memcpy(own, theirs, came.bytes().size());
}

void SmallSum::finish() {
  if (!block_) return;
  for_each_part(
      [](ValueSpan part, std::byte* place) { std::memcpy(part.pointer(), place, part.bytes()); });
}

}  // namespace

std::unique_ptr<HostTransfer> make_small_sum(const Start& start, const RingWork& work,
                                             HostSteps steps) {
  return std::make_unique<SmallSum>(start, work, std::move(steps));
}

}  // namespace tersor::host
