// A network that takes its time: payloads are read from the sender's memory only when they are
// delivered, at random later times and out of order, and senders hear of that later still, as with
// MPI. It checks that nobody writes to a payload in between. Not a transport of its own: it has no
// channels and cannot tell who left.
#pragma once

#include <cstring>
#include <list>
#include <random>

#include "comm/transport/host/host_transport.h"
#include "comm/transport/host/postman.h"
#include "tests/transport/ranks.h"

namespace tersor::test {

/// What the ranks of one run share.
class LateNetwork {
 public:
  explicit LateNetwork(int ranks) : ranks_(ranks) {}

  int ranks() const { return ranks_; }
  void post(int rank, host::Batch& batch);
  void cancel(host::Batch& batch);
  /// Delivers some of what has come for a rank, and tells it of some that were delivered to others.
  void move_some(int rank);
  host::BlockPools& pools() { return pools_; }
  void raise(const std::string& cause);
  std::string fault() const;

 private:
  struct Letter {
    int from;
    int to;
    host::Batch* batch;
    host::Outgoing* outgoing;
    host::Block delivered = {};  // what was read; empty: not yet
    bool read = false;
  };
  struct Wish {
    int rank;
    host::Batch* batch;
    host::Incoming* incoming;
  };
  Letter* letter_for(const Wish& wish);
  bool fulfil(const Wish& wish);
  bool chance() { return random_() % 4 == 0; }
  void hand_over(Letter& letter, const Wish& wish);
  bool acknowledge(const Letter& letter);

  const int ranks_;
  mutable std::mutex mutex_;
  std::mt19937 random_{12345};
  host::BlockPools pools_;
  std::list<Letter> letters_;
  std::list<Wish> wishes_;
  std::string fault_;
};

inline void LateNetwork::post(int rank, host::Batch& batch) {
  const std::lock_guard lock(mutex_);
  batch.open = static_cast<std::uint32_t>(batch.outgoing.size() + batch.incoming.size());
  for (host::Outgoing& outgoing : batch.outgoing)
    letters_.push_back({rank, outgoing.peer, &batch, &outgoing});
  for (host::Incoming& incoming : batch.incoming) wishes_.push_back({rank, &batch, &incoming});
}

inline void LateNetwork::cancel(host::Batch& batch) {
  const std::lock_guard lock(mutex_);
  letters_.remove_if([&](const Letter& letter) { return letter.batch == &batch; });
  wishes_.remove_if([&](const Wish& wish) { return wish.batch == &batch; });
}

inline LateNetwork::Letter* LateNetwork::letter_for(const Wish& wish) {
  for (Letter& letter : letters_)
    if (!letter.read && letter.to == wish.rank && letter.from == wish.incoming->peer &&
        letter.batch->key == wish.batch->key)
      return &letter;
  return nullptr;
}

inline void LateNetwork::hand_over(Letter& letter, const Wish& wish) {
  const ConstByteSpan bytes = letter.outgoing->payload;
  letter.delivered = pools_.host().take(bytes.size());
  if (!bytes.empty()) std::memcpy(letter.delivered.writable().data(), bytes.data(), bytes.size());
  letter.read = true;
  wish.incoming->payload = letter.delivered;
  wish.incoming->source = letter.from;
  wish.incoming->arrived = true;
  wish.batch->open.fetch_sub(1);
}

inline bool LateNetwork::fulfil(const Wish& wish) {
  Letter* letter = letter_for(wish);
  if (letter == nullptr || !chance()) return false;
  hand_over(*letter, wish);
  return true;
}

inline bool LateNetwork::acknowledge(const Letter& letter) {
  EXPECT_TRUE(same_bytes(letter.outgoing->payload, letter.delivered.bytes()))
      << "rank " << letter.from << " wrote to what it was sending";
  letter.batch->open.fetch_sub(1);
  return true;
}

inline void LateNetwork::move_some(int rank) {
  const std::lock_guard lock(mutex_);
  wishes_.remove_if([&](const Wish& wish) { return wish.rank == rank && fulfil(wish); });
  letters_.remove_if([&](const Letter& letter) {
    return letter.read && letter.from == rank && random_() % 16 == 0 && acknowledge(letter);
  });
}

inline void LateNetwork::raise(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  if (fault_.empty()) fault_ = cause;
}

inline std::string LateNetwork::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

class LatePostman final : public host::Postman {
 public:
  LatePostman(LateNetwork& network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return network_.ranks(); }
  std::string name(int rank) const override { return "rank " + std::to_string(rank); }
  TransferCounters counters() const override { return {}; }
  host::BlockPools& pools() override { return network_.pools(); }
  void post(host::Batch& batch) override { network_.post(rank_, batch); }
  void cancel(host::Batch& batch) override { network_.cancel(batch); }
  void progress() override { network_.move_some(rank_); }
  void wait(Clock::time_point) override { std::this_thread::yield(); }
  void wake() override {}
  void raise(const std::string& cause) override { network_.raise(cause); }
  bool faulty() const override { return !network_.fault().empty(); }
  std::string fault() const override { return network_.fault(); }
  std::shared_ptr<Postman> join(std::span<const int>) override {
    throw InvalidArgument("this network has one channel");
  }
  void leave() override {}

 private:
  LateNetwork& network_;
  int rank_;
};

inline Fabric late_fabric() {
  const auto run = [](int ranks, const Body& body) {
    LateNetwork network(ranks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        host::HostTransport transport(std::make_shared<LatePostman>(network, rank),
                                      {.receive_any = false});
        body(transport);
      });
  };
  return {"LateSends", run};
}

}  // namespace tersor::test
