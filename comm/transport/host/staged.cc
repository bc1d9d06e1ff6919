// Operations on device memory. See staging.h.
#include "comm/transport/host/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace tersor::host {
namespace {

/// An exchange with payloads on a device: sends copies of the payloads and copies received payloads
/// to the device. Without payloads, a barrier for the work queued on the streams.
class StagedExchange final : public HostExchange {
 public:
  StagedExchange(Staging& staging, const Start& start, std::size_t receives)
      : HostExchange(start, receives), copies_(staging, start.operation) {}

  // After success, the caller may have queued work that reads the received bytes.
  ~StagedExchange() override {
    if (!done()) return;
    for (Incoming& came : incoming())
      if (came.payload) copies_.keep_for_caller(std::move(came.payload));
  }

  void begin() override {
    std::size_t capacity = 0;
    for (const Incoming& message : incoming()) capacity = std::max(capacity, message.capacity);
    receive_into(copies_.staging().network_pool(capacity));
    on_device(*this, [this] { copy_down(); });
  }

  bool step() override {
    return on_device(*this, [this] { return move(); });
  }

  std::vector<int> missing() const override {
    return copying() ? std::vector<int>{} : HostExchange::missing();
  }

  bool copying() const override { return copies_.going_down(); }

 private:
  // Copies a payload for several peers once. Without sends, waits for no stream.
  void copy_down() {
    if (outgoing().empty()) return;
    const StreamView stream = copies_.begin_down();
    const Outgoing* before = nullptr;
    for (Outgoing& message : outgoing()) {
      if (before != nullptr && before->payload.data() == message.payload.data() &&
          before->payload.size() == message.payload.size())
        message.block = before->block;
      else
        copy_down(message, stream);
      before = &message;
    }
    for (Outgoing& message : outgoing()) message.payload = message.block.bytes();
    copies_.end_down();
  }

  void copy_down(Outgoing& message, StreamView stream) {
    const std::size_t bytes = message.payload.size();
    if (bytes == 0) return;
    Staging::check(operation(), message.payload);
    message.block = copies_.staging().network_pool(bytes).take(bytes);
    copies_.keep(message.block);
    kernels::copy_bytes(message.block.writable().data(), message.payload.data(), bytes, stream);
  }

  bool move() {
    if (copies_.going_down() && !copies_.came_down()) return false;
    if (!std::exchange(came_down_, true)) HostExchange::begin();
    if (!HostExchange::step()) return false;
    copy_up();
    return true;
  }

  void copy_up() {
    if (std::none_of(incoming().begin(), incoming().end(),
                     [this](const Incoming& came) { return must_go_up(came); }))
      return;
    const StreamView stream = copies_.begin_up();
    for (Incoming& came : incoming())
      if (must_go_up(came)) copy_up(came, stream);
    copies_.end_up();
  }

  // Empty messages have no block, and the network may have written to device memory directly.
  bool must_go_up(const Incoming& incoming) const {
    return incoming.payload && incoming.payload.memory() != BlockMemory::kDevice;
  }

  // Short messages arrive in unpinned memory of the network.
  void copy_up(Incoming& incoming, StreamView stream) {
    const std::size_t bytes = incoming.payload.bytes().size();
    Block up = copies_.staging().device().take(bytes);
    if (incoming.payload.memory() == BlockMemory::kHost) {
      Block pinned = copies_.staging().pinned().take(bytes);
      std::memcpy(pinned.writable().data(), incoming.payload.bytes().data(), bytes);
      incoming.payload = std::move(pinned);
    }
    kernels::copy_bytes(up.writable().data(), incoming.payload.bytes().data(), bytes, stream);
    copies_.keep(std::exchange(incoming.payload, std::move(up)));
  }

  Copies copies_;
  bool came_down_ = false;
};

/// A native sum or maximum of device values: copied to the host, combined as in ring.h, and copied
/// back.
class StagedReduction final : public HostTransfer {
 public:
  StagedReduction(Staging& staging, const Start& start, const RingWork& work)
      : HostTransfer(start),
        parts_(work.parts.begin(), work.parts.end()),
        combine_(work.combine),
        copies_(staging, start.operation) {}

  std::vector<int> missing() const override {
    return reduction_ == nullptr ? std::vector<int>{} : reduction_->missing();
  }

  void begin() override {
    on_device(*this, [this] { copy_down(); });
  }

  bool step() override {
    return on_device(*this, [this] { return move(); });
  }

  bool copying() const override { return copies_.going_down(); }

 private:
  void copy_down() {
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

  bool move() {
    if (copies_.going_down()) {
      if (!copies_.came_down()) return false;
      start_on_host();
    }
    if (!reduction_->step()) return false;
    copy_up();
    return true;
  }

  // The network may read the pinned block even after an error.
  void start_on_host() {
    Operation on_host = operation();
    on_host.memory = Memory::kHost;
    on_host.keep_alive = std::make_shared<const Block>(pinned_);
    reduction_ = make_reduction(part_of(on_host), {.parts = on_host_, .combine = combine_});
    reduction_->begin();
  }

  void copy_up() {
    const StreamView stream = copies_.begin_up();
    for (std::size_t part = 0; part < parts_.size(); ++part)
      kernels::copy_bytes(parts_[part].pointer(), on_host_[part].pointer(), parts_[part].bytes(),
                          stream);
    copies_.end_up();
  }

  std::vector<ValueSpan> parts_;    // on the device
  std::vector<ValueSpan> on_host_;  // host copies of the parts
  Combine combine_;
  Copies copies_;
  Block pinned_;
  std::unique_ptr<HostTransfer> reduction_;
};

}  // namespace

std::unique_ptr<HostExchange> make_staged_exchange(Staging& staging, const Start& start,
                                                   std::size_t receives) {
  return std::make_unique<StagedExchange>(staging, start, receives);
}

std::unique_ptr<HostTransfer> make_staged_reduction(Staging& staging, const Start& start,
                                                    const RingWork& work) {
  return std::make_unique<StagedReduction>(staging, start, work);
}

}  // namespace tersor::host
