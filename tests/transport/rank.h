// A rank of a transport suite, and the memory of its messages: host memory, or device memory. Reads
// and writes of device memory are queued on a stream, so a transport that does not wait for the
// stream sends other bytes.
#pragma once

#include <cstring>
#include <deque>
#include <optional>

#include "tests/device/device_bytes.h"
#include "tests/transport/ranks.h"

namespace tersor::test {

/// A transport, and the operations of a rank in the memory of the fabric.
class Rank {
 public:
  Rank(Transport& tested, const Fabric& fabric)
      : transport(tested), fabric_(fabric), own_(tested.rank()), ranks_(tested.ranks()) {
    if (on_device()) stream_.emplace();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() { synchronize(); }

  Transport& transport;

  int rank() const { return own_; }
  int ranks() const { return ranks_; }
  /// The rank at this distance on a ring.
  int at(int distance) const { return (own_ + distance + ranks_) % ranks_; }
  std::vector<int> peers() const { return peers_of(transport); }
  bool queues() const { return transport.traits().queues; }
  bool on_device() const { return fabric_.memory == Memory::kDevice; }
  const Stream& stream() const { return *stream_; }

  /// The operation with this tag, or with the next one.
  Operation operation(std::uint32_t tag) const {
    Operation made{.name = "test", .signature = 42, .tag = tag, .memory = fabric_.memory};
    if (on_device()) made.stream = stream_->view();
    made.in_order = fabric_.in_order;
    return made;
  }
  Operation operation() const { return operation(transport.reserve_tags(1)); }

  /// Message sizes, and the surplus of a receive's capacity. NCCL needs exact capacities.
  std::vector<std::size_t> sizes() const {
    if (on_device()) return {0, 1, 255, 256, 9'001, 70'001};
    return {0, 1, 255, 257, 65'537, 1 << 20};
  }
  std::size_t spare() const { return queues() ? 0 : 7; }

  void synchronize() const {
    if (on_device()) stream_->synchronize();
  }
  /// The contents of memory after the queued work.
  template <typename T = std::byte>
  std::vector<T> read(ConstByteSpan bytes) const {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!on_device()) {
      if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    }
    const LateCopy copy(bytes, *stream_);
    stream_->synchronize();
    if (!bytes.empty()) std::memcpy(values.data(), copy.span().data(), bytes.size());
    return values;
  }
  /// Expects `pattern(bytes, peer, to)` from a peer, or from all peers.
  void expect(const Handle& handle, int peer, std::size_t bytes, int to) const {
    EXPECT_TRUE(read(handle.received(peer)) == pattern(bytes, peer, to))
        << bytes << " bytes from " << peer << " to " << own_;
  }
  void expect_all(const Handle& handle, std::size_t bytes, int to) const {
    for (const int peer : peers()) expect(handle, peer, bytes, to);
  }

 private:
  const Fabric& fabric_;
  const int own_, ranks_;
  std::optional<Stream> stream_;
};

/// Bytes or values in the memory of a rank, until the queued work is done.
class RankBytes {
 public:
  template <typename T>
  RankBytes(const Rank& rank, const std::vector<T>& values) : rank_(rank) {
    const ConstByteSpan bytes = std::as_bytes(std::span(values));
    if (rank.on_device())
      device_.emplace(bytes, rank.stream());
    else
      host_.assign(bytes.begin(), bytes.end());
  }
  ~RankBytes() { rank_.synchronize(); }
  RankBytes(const RankBytes&) = delete;
  RankBytes& operator=(const RankBytes&) = delete;

  ConstByteSpan span() const { return device_ ? device_->span() : ConstByteSpan(host_); }
  /// The bytes as values, cut into a part per rank of a group.
  std::vector<ValueSpan> parts(int ranks, Dtype dtype = Dtype::kF32) {
    const std::size_t count = span().size() / dtype_bytes(dtype);
    const ValueSpan all =
        device_ ? device_->values(count, dtype) : ValueSpan(host_.data(), count, dtype);
    return cut(all, even_counts(count, ranks));
  }
  template <typename T>
  std::vector<T> read() const {
    return rank_.read<T>(span());
  }

 private:
  const Rank& rank_;
  std::vector<std::byte> host_;
  std::optional<LateBytes> device_;
};

using RankFunction = std::function<void(const Rank&)>;

/// A suite for every fabric and its memory.
class OnMemory : public OnFabric {
 protected:
  void run(int ranks, const RankFunction& body) const { OnFabric::run(ranks, with_rank(body)); }
  void on_all_ranks(const RankFunction& body) const { OnFabric::on_all_ranks(with_rank(body)); }

 private:
  Body with_rank(const RankFunction& body) const {
    return [this, body](Transport& transport) { body(Rank(transport, GetParam())); };
  }
};

class TransportConformance : public OnMemory {};
class TransportExchange : public OnMemory {};

}  // namespace tersor::test
