// Exchanges of device memory; staging.h says how.
#include "comm/transport/host/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tersor::host {
namespace {

/// An exchange whose payloads lie on a device: their copies are sent, and copies of what came are
/// received. Without payloads, a barrier: of what is queued on the streams.
class StagedExchange final : public HostExchange {
 public:
  StagedExchange(Staging& staging, const Start& start, std::size_t receives);
  ~StagedExchange() override;

  void begin() override;
  bool step() override;
  std::vector<int> missing() const override;
  bool copying() const override { return copies_.going_down(); }

 private:
  void copy_down();
  void copy_down(Outgoing& message, StreamView stream);
  bool move();
  void copy_up();
  bool must_go_up(const Incoming& incoming) const;
  void copy_up(Incoming& incoming, StreamView stream);

  Copies copies_;
  bool came_down_ = false;
};

StagedExchange::StagedExchange(Staging& staging, const Start& start, std::size_t receives)
    : HostExchange(start, receives), copies_(staging, start.operation) {}

// The caller has queued what reads the bytes that came, if it took them.
StagedExchange::~StagedExchange() {
  if (!done()) return;
  for (Incoming& came : incoming())
    if (came.payload) copies_.keep_for_caller(std::move(came.payload));
}

std::vector<int> StagedExchange::missing() const {
  return copying() ? std::vector<int>{} : HostExchange::missing();
}

void StagedExchange::begin() {
  std::size_t capacity = 0;
  for (const Incoming& message : incoming()) capacity = std::max(capacity, message.capacity);
  receive_into(copies_.staging().network_pool(capacity));
  on_device(*this, [this] { copy_down(); });
}

// What goes to several peers is copied once. Who sends nothing waits for no stream.
void StagedExchange::copy_down() {
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

void StagedExchange::copy_down(Outgoing& message, StreamView stream) {
  const std::size_t bytes = message.payload.size();
  if (bytes == 0) return;
  Staging::check(operation(), message.payload);
  message.block = copies_.staging().network_pool(bytes).take(bytes);
  copies_.keep(message.block);
  kernels::copy_bytes(message.block.writable().data(), message.payload.data(), bytes, stream);
}

bool StagedExchange::step() {
  return on_device(*this, [this] { return move(); });
}

bool StagedExchange::move() {
  if (copies_.going_down() && !copies_.came_down()) return false;
  if (!std::exchange(came_down_, true)) HostExchange::begin();
  if (!HostExchange::step()) return false;
  copy_up();
  return true;
}

// Zero bytes have no block, and the network may have written to the device by itself.
bool StagedExchange::must_go_up(const Incoming& incoming) const {
  return incoming.payload && incoming.payload.memory() != BlockMemory::kDevice;
}

void StagedExchange::copy_up() {
  if (std::none_of(incoming().begin(), incoming().end(),
                   [this](const Incoming& came) { return must_go_up(came); }))
    return;
  const StreamView stream = copies_.begin_up();
  for (Incoming& came : incoming())
    if (must_go_up(came)) copy_up(came, stream);
  copies_.end_up();
}

// Short messages come in memory of the network that is not pinned.
void StagedExchange::copy_up(Incoming& incoming, StreamView stream) {
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

}  // namespace

std::unique_ptr<HostExchange> make_staged_exchange(Staging& staging, const Start& start,
                                                   std::size_t receives) {
  return std::make_unique<StagedExchange>(staging, start, receives);
}

}  // namespace tersor::host
