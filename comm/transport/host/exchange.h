// Operations with a single batch: all messages start at once, and the operation is done when all
// have arrived.
#pragma once

#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

#include "comm/transport/host/channel.h"

namespace tersor::host {

/// Transport::exchange and all_gather for host memory. See staging.h for device memory.
class HostExchange : public HostTransfer {
 public:
  /// `receives` is the number of `add_receive` calls to follow before the transfer begins.
  HostExchange(const Start& start, std::size_t receives);
  ~HostExchange() override { cancel(batch_); }

  void add_send(int peer, ConstByteSpan payload) {
    outgoing_.push_back({.peer = peer, .payload = payload});
  }
  void add_receive(int peer, std::size_t min_bytes, std::size_t capacity);
  /// Sends to and receives from each other rank. Starts with the next rank, to spread the load over
  /// the ranks.
  void add_all(ConstByteSpan payload, std::size_t min_bytes, std::size_t capacity);

  void begin() override;
  bool step() override { return batch_.closed(); }
  void end(std::exception_ptr error) override {
    const auto locked = channel().engine().lock();
    if (!batch_.closed()) locked->delivery.end(channel().state(), batch_, std::move(error));
  }
  void check() const override {
    if (batch_.error != nullptr) std::rethrow_exception(batch_.error);
  }
  std::vector<int> missing() const override;
  ConstByteSpan received(int rank) const override;
  int source() const override;

 protected:
  std::span<Outgoing> outgoing() { return outgoing_; }
  std::span<Incoming> incoming() { return incoming_; }
  /// Sets the preferred pool for received payloads.
  void receive_into(BlockPool& pool) { batch_.pool = &pool; }
  /// Same as `received`, for use while `step` still runs.
  ConstByteSpan payload_of(int rank) const;

 private:
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::size_t added_ = 0;  // number of used entries of `incoming_`
  Batch batch_;
};

}  // namespace tersor::host
