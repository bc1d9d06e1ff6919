// Native sums and maxima of values on a device: copied down, combined by the hosts as in ring.h,
// and copied up again; staging.h says how.
#include "comm/transport/host/staging.h"

#include <vector>

namespace tersor::host {
namespace {

class StagedReduction final : public HostTransfer {
 public:
  StagedReduction(Staging& staging, const Start& start, const RingWork& work);

  void begin() override;
  bool step() override;
  std::vector<int> missing() const override;
  bool copying() const override { return copies_.going_down(); }

 private:
  void copy_down();
  bool move();
  void start_on_host();
  void copy_up();

  std::vector<ValueSpan> parts_;    // on the device
  std::vector<ValueSpan> on_host_;  // their copies
  Combine combine_;
  Copies copies_;
  Block pinned_;
  std::unique_ptr<HostTransfer> reduction_;  // of the copies
};

StagedReduction::StagedReduction(Staging& staging, const Start& start, const RingWork& work)
    : HostTransfer(start),
      parts_(work.parts.begin(), work.parts.end()),
      combine_(work.combine),
      copies_(staging, start.operation) {}

std::vector<int> StagedReduction::missing() const {
  return reduction_ == nullptr ? std::vector<int>{} : reduction_->missing();
}

void StagedReduction::begin() {
  on_device(*this, [this] { copy_down(); });
}

void StagedReduction::copy_down() {
  pinned_ = copies_.staging().pinned().take(envelope().count * dtype_bytes(envelope().dtype));
  if (pinned_) copies_.keep(pinned_);
  std::byte* next = pinned_.writable().data();
  const StreamView stream = copies_.begin_down();
  for (const ValueSpan& part : parts_) {
    if (!part.empty()) Staging::check(operation(), {part.pointer(), part.bytes()});
    on_host_.emplace_back(next, part.count(), envelope().dtype);
    kernels::copy_bytes(next, part.pointer(), part.bytes(), stream);
    next += part.bytes();
  }
  copies_.end_down();
}

bool StagedReduction::step() {
  return on_device(*this, [this] { return move(); });
}

bool StagedReduction::move() {
  if (copies_.going_down()) {
    if (!copies_.came_down()) return false;
    start_on_host();
  }
  if (!reduction_->step()) return false;
  copy_up();
  return true;
}

// The network may read the pinned block even after an error.
void StagedReduction::start_on_host() {
  Operation on_host = operation();
  on_host.memory = Memory::kHost;
  on_host.keep_alive = std::make_shared<const Block>(pinned_);
  reduction_ = make_reduction(part_of(on_host), {.parts = on_host_, .combine = combine_});
  reduction_->begin();
}

void StagedReduction::copy_up() {
  const StreamView stream = copies_.begin_up();
  for (std::size_t part = 0; part < parts_.size(); ++part)
    kernels::copy_bytes(parts_[part].pointer(), on_host_[part].pointer(), parts_[part].bytes(),
                        stream);
  copies_.end_up();
}

}  // namespace

std::unique_ptr<HostTransfer> make_staged_reduction(Staging& staging, const Start& start,
                                                    const RingWork& work) {
  return std::make_unique<StagedReduction>(staging, start, work);
}

}  // namespace tersor::host
