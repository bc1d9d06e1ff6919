// Runs the steps of an operation (steps.h) in sequence.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/transport/host/channel.h"
#include "comm/transport/host/steps.h"

namespace tersor::host {

class StepTransfer : public HostTransfer {
 public:
  ~StepTransfer() override { cancel(batch_); }

  void begin() override;
  bool step() final;
  std::vector<int> missing() const final;

 protected:
  /// `item_bytes` is the size of an item.
  StepTransfer(const Start& start, HostSteps steps, std::size_t item_bytes);

  /// Sets the memory of the items, valid from `begin` to the end of the last step. A message is
  /// read from this memory until the end of its step.
  void use_items(std::byte* items) { items_ = items; }
  /// Allocates memory for the items. The network keeps this memory after an error.
  void allocate_items(std::size_t count);
  bool owns_items() const { return owner_ != nullptr; }
  std::byte* at(std::size_t item) const { return items_ + item * item_bytes_; }

  /// Combines received items with local items. `received` may be overwritten.
  virtual void combine(const HostStep& /*step*/, Block /*came*/) {}
  /// Called after the last step.
  virtual void finish() {}

 private:
  ByteSpan bytes_of(ItemRange range) const { return {at(range.first), range.count * item_bytes_}; }
  void post();
  void process_received();

  const HostSteps steps_;
  const std::size_t item_bytes_;
  std::byte* items_ = nullptr;
  std::shared_ptr<const Block> owner_;  // of the items, or null
  std::size_t current_ = 0;             // index of the current step
  Outgoing outgoing_;
  Incoming incoming_;
  Batch batch_;
};

}  // namespace tersor::host
