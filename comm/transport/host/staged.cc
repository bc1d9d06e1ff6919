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
    for (Incoming& message : incoming())
      if (message.payload) copies_.retain_for_caller(std::move(message.payload));
  }

  void begin() override {
    std::size_t capacity = 0;
    for (const Incoming& message : incoming()) capacity = std::max(capacity, message.capacity);
    receive_into(copies_.staging().network_pool(capacity));
    on_device(*this, [this] { copy_to_host(); });
  }

  bool step() override {
    return on_device(*this, [this] { return advance(); });
  }

  std::vector<int> missing() const override {
    return copying() ? std::vector<int>{} : HostExchange::missing();
  }

  bool copying() const override { return copies_.copying_to_host(); }

 private:
  // Copies a payload for several peers once. Without sends, waits for no stream.
  void copy_to_host() {
    if (outgoing().empty()) return;
    const StreamView stream = copies_.begin_to_host();
    const Outgoing* last = nullptr;
    for (Outgoing& message : outgoing()) {
      if (last != nullptr && last->payload.data() == message.payload.data() &&
          last->payload.size() == message.payload.size())
        message.block = last->block;
      else
        copy_to_host(message, stream);
      last = &message;
    }
    for (Outgoing& message : outgoing()) message.payload = message.block.bytes();
    copies_.end_to_host();
  }

  void copy_to_host(Outgoing& message, StreamView stream) {
    const std::size_t bytes = message.payload.size();
    if (bytes == 0) return;
    Staging::check(operation(), message.payload);
    message.block = copies_.staging().network_pool(bytes).take(bytes);
    copies_.retain(message.block);
    kernels::copy_bytes(message.block.writable().data(), message.payload.data(), bytes, stream);
  }

  bool advance() {
    if (copies_.copying_to_host() && !copies_.to_host_done()) return false;
    if (!std::exchange(started_, true)) HostExchange::begin();
    if (!HostExchange::step()) return false;
    copy_to_device();
    return true;
  }

  void copy_to_device() {
    if (std::none_of(incoming().begin(), incoming().end(),
                     [this](const Incoming& message) { return needs_device_copy(message); }))
      return;
    const StreamView stream = copies_.begin_to_device();
    for (Incoming& message : incoming())
      if (needs_device_copy(message)) copy_to_device(message, stream);
    copies_.end_to_device();
  }

  // Empty messages have no block, and the network may have written to device memory directly.
  bool needs_device_copy(const Incoming& incoming) const {
    return incoming.payload && incoming.payload.memory() != BlockMemory::kDevice;
  }

  // Short messages arrive in unpinned memory of the network.
  void copy_to_device(Incoming& incoming, StreamView stream) {
    const std::size_t bytes = incoming.payload.bytes().size();
    Block copy = copies_.staging().device().take(bytes);
    if (incoming.payload.memory() == BlockMemory::kHost) {
      Block pinned = copies_.staging().pinned().take(bytes);
      std::memcpy(pinned.writable().data(), incoming.payload.bytes().data(), bytes);
      incoming.payload = std::move(pinned);
    }
    kernels::copy_bytes(copy.writable().data(), incoming.payload.bytes().data(), bytes, stream);
    copies_.retain(std::exchange(incoming.payload, std::move(copy)));
  }

  Copies copies_;
  bool started_ = false;
};

/// A native sum or maximum of device values: copied to the host, combined as in ring.h, and copied
/// back.
class StagedReduction final : public HostTransfer {
 public:
  StagedReduction(Staging& staging, const Start& start, RingWork work)
      : HostTransfer(start), work_(std::move(work)), copies_(staging, start.operation) {}

  std::vector<int> missing() const override {
    return reduction_ == nullptr ? std::vector<int>{} : reduction_->missing();
  }

  void begin() override {
    on_device(*this, [this] { copy_to_host(); });
  }

  bool step() override {
    return on_device(*this, [this] { return advance(); });
  }

  bool copying() const override { return copies_.copying_to_host(); }

 private:
  void copy_to_host() {
    pinned_ = copies_.staging().pinned().take(envelope().count * dtype_bytes(envelope().dtype));
    if (pinned_) copies_.retain(pinned_);
    std::byte* next = pinned_.writable().data();
    const StreamView stream = copies_.begin_to_host();
    for (const ValueSpan& part : work_.parts) {
      if (!part.empty()) Staging::check(operation(), {part.pointer(), part.bytes()});
      on_host_.emplace_back(next, part.count(), envelope().dtype);
      kernels::copy_bytes(next, part.pointer(), part.bytes(), stream);
      next += part.bytes();
    }
    copies_.end_to_host();
  }

  bool advance() {
    if (copies_.copying_to_host()) {
      if (!copies_.to_host_done()) return false;
      start_on_host();
    }
    if (!reduction_->step()) return false;
    copy_to_device();
    return true;
  }

  // The network may read the pinned block even after an error.
  void start_on_host() {
    Operation on_host = operation();
    on_host.memory = Memory::kHost;
    on_host.keep_alive = std::make_shared<const Block>(pinned_);
    reduction_ =
        make_reduction(nested_start(on_host), {.parts = on_host_, .combine = work_.combine});
    reduction_->begin();
  }

  void copy_to_device() {
    const StreamView stream = copies_.begin_to_device();
    for (std::size_t part = 0; part < on_host_.size(); ++part)
      kernels::copy_bytes(work_.parts[part].pointer(), on_host_[part].pointer(),
                          on_host_[part].bytes(), stream);
    copies_.end_to_device();
  }

  const RingWork work_;             // the parts are on the device
  std::vector<ValueSpan> on_host_;  // host copies of the parts
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
                                                    RingWork work) {
  return std::make_unique<StagedReduction>(staging, start, std::move(work));
}

}  // namespace tersor::host
