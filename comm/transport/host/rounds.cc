#include "comm/transport/host/rounds.h"

#include <tersor/align.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "comm/transport/host/step_transfer.h"

namespace tersor::host {
namespace {

constexpr std::size_t kHeaderBytes = 16;

std::size_t record_bytes(std::size_t capacity) { return kHeaderBytes + align_up(capacity, 16); }

class GatherInRounds final : public StepTransfer {
 public:
  GatherInRounds(const Start& start, ConstByteSpan send, std::size_t capacity)
      : StepTransfer(start, gather_in_rounds(start.channel->rank(), start.channel->ranks()),
                     record_bytes(capacity)),
        send_(send),
        capacity_(capacity) {}

  void begin() override {
    if (send_.size() > capacity_) fail_oversized(channel().rank(), send_.size());
    allocate_items(static_cast<std::size_t>(channel().ranks()));
    const std::uint64_t length = send_.size();
    std::memset(at(0), 0, record_bytes(capacity_));
    std::memcpy(at(0), &length, sizeof(length));
    if (length != 0) std::memcpy(at(0) + kHeaderBytes, send_.data(), length);
    StepTransfer::begin();
  }

  ConstByteSpan received(int rank) const override {
    require_done();
    const int ranks = channel().ranks();
    const int distance = (rank - channel().rank() + ranks) % ranks;
    if (distance == 0) return {};
    return content_of(static_cast<std::size_t>(distance));
  }

 private:
  ConstByteSpan content_of(std::size_t record) const {
    std::uint64_t length = 0;
    std::memcpy(&length, at(record), sizeof(length));
    return {at(record) + kHeaderBytes, static_cast<std::size_t>(length)};
  }

  [[noreturn]] void fail_oversized(int rank, std::size_t bytes) const {
    raise(channel().name(rank) + " sends " + std::to_string(bytes) +
          " bytes, but this rank expects at most " + std::to_string(capacity_));
    throw TransportError(channel().fault().text);
  }

  void finish() override {
    const int ranks = channel().ranks();
    for (int distance = 1; distance < ranks; ++distance) {
      const std::size_t bytes = content_of(static_cast<std::size_t>(distance)).size();
      if (bytes > capacity_) fail_oversized((channel().rank() + distance) % ranks, bytes);
    }
  }

  ConstByteSpan send_;
  std::size_t capacity_;
};

}  // namespace

std::unique_ptr<HostTransfer> make_gather_in_rounds(const Start& start, ConstByteSpan send,
                                                    std::size_t capacity) {
  return std::make_unique<GatherInRounds>(start, send, capacity);
}

}  // namespace tersor::host
