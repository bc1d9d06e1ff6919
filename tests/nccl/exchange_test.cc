// Message lists over the NCCL replacement: each exchange is one group of sends and receives, to and
// from any peers.
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StrEq;

/// A message of `bytes` bytes to and from a peer, with the contents of `pattern`.
class Messages {
 public:
  explicit Messages(NcclRank& rank) : rank_(rank) {}

  void send(int peer, std::size_t bytes) {
    memory_.push_back(std::make_unique<DeviceBytes>(bytes));
    memory_.back()->fill(pattern(bytes, rank_.rank(), peer), rank_.stream);
    sends_.push_back({peer, memory_.back()->span()});
  }
  void receive(int peer, std::size_t bytes) { receives_.push_back({peer, bytes}); }

  void exchange() {
    Handle handle = rank_.transport.exchange(rank_.operation(), sends_, receives_);
    handle.wait_synchronize();
    for (const auto& [peer, bytes] : receives_)
      EXPECT_EQ(fetch(handle.received(peer), rank_.stream), pattern(bytes, peer, rank_.rank()))
          << bytes << " bytes from " << peer << " to " << rank_.rank();
    kernels::synchronize(rank_.stream);
  }

 private:
  NcclRank& rank_;
  std::vector<std::unique_ptr<DeviceBytes>> memory_;
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_;
};

TEST(NcclExchange, ShiftsAlongARing) {
  on_all_nccl_ranks([](NcclRank& rank) {
    for (const std::size_t bytes : {0u, 1u, 257u, 10'007u})
      for (int distance = 1; distance < rank.ranks(); ++distance) {
        Messages messages(rank);
        messages.send((rank.rank() + distance) % rank.ranks(), bytes);
        messages.receive((rank.rank() + rank.ranks() - distance) % rank.ranks(), bytes);
        messages.exchange();
      }
  });
}

TEST(NcclExchange, GoesToAStarsMiddleAndBack) {
  on_all_nccl_ranks([](NcclRank& rank) {
    for (const bool inwards : {true, false}) {
      Messages messages(rank);
      for (int peer = 0; peer < rank.ranks(); ++peer) {
        if (peer == rank.rank() || (rank.rank() != 0 && peer != 0)) continue;
        if (inwards == (peer == 0))
          messages.send(peer, 1000);
        else
          messages.receive(peer, 1000);
      }
      messages.exchange();
    }
  });
}

// Rank r sends to all higher ranks, and more to higher ranks. The lowest rank receives nothing.
TEST(NcclExchange, ListsMayBeUnevenAndEmpty) {
  on_all_nccl_ranks([](NcclRank& rank) {
    const auto bytes = [](int from, int to) { return static_cast<std::size_t>(to - from) * 401; };
    Messages messages(rank);
    for (int peer = rank.ranks() - 1; peer > rank.rank(); --peer)
      messages.send(peer, bytes(rank.rank(), peer));
    for (int peer = 0; peer < rank.rank(); ++peer) messages.receive(peer, bytes(peer, rank.rank()));
    messages.exchange();
    Messages(rank).exchange();
  });
}

TEST(NcclExchange, IsOneGroupOfWhatIsNotEmpty) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 3, [&](NcclRank& rank) {
    rank.transport.begin(rank.operation());
    rank.meet();
    const int groups = nccl.calls("ncclGroupEnd");
    rank.meet();
    Messages messages(rank);
    messages.send((rank.rank() + 1) % 3, 500);
    messages.send((rank.rank() + 2) % 3, 0);
    messages.receive((rank.rank() + 1) % 3, 0);
    messages.receive((rank.rank() + 2) % 3, 500);
    messages.exchange();
    rank.meet();
    EXPECT_EQ(nccl.calls("ncclGroupEnd") - groups, 3);
    rank.transport.end(rank.operation());
  });
  EXPECT_THAT(run.errors, Each(StrEq("")));
  EXPECT_EQ(nccl.calls("ncclSend"), 3);
  EXPECT_EQ(nccl.calls("ncclRecv"), 3);
}

// A rank without messages must agree, too. A send and its receive involve no other rank.
TEST(NcclExchange, AllRanksAgreeOnItButNotOnASend) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 3, [](NcclRank& rank) {
    DeviceBytes bytes(100);
    bytes.fill(pattern(100, rank.rank(), 1), rank.stream);
    const Operation alone = rank.operation("pair", 7);
    if (rank.rank() == 0) rank.transport.send(alone, 1, bytes.span()).wait_synchronize();
    if (rank.rank() == 1) rank.transport.receive(alone, 0, 100).wait_synchronize();
    kernels::synchronize(rank.stream);
    rank.transport.exchange(rank.operation("step", rank.rank() == 2 ? 2 : 1), {}, {});
  });
  EXPECT_THAT(run.errors, Each(HasSubstr("step with other arguments")));
}

// An empty gather on a device still waits for all ranks.
TEST(NcclExchange, AGatherOfNothingIsABarrier) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 4, [](NcclRank& rank) {
    Handle gathered = rank.transport.all_gather(rank.operation(), {}, 0);
    gathered.wait_synchronize();
    for (int peer = 0; peer < 4; ++peer) EXPECT_TRUE(gathered.received(peer).empty());
    rank.transport.barrier(rank.operation()).wait_synchronize();
  });
  EXPECT_THAT(run.errors, Each(StrEq("")));
  EXPECT_EQ(nccl.calls("ncclAllReduce"), 2 * 4);
}

TEST(NcclExchange, RefusesByNameWhatNoExchangeIs) {
  on_nccl(3, [](NcclRank& rank) {
    const int own = rank.rank(), next = (own + 1) % 3;
    const auto refusal = [&](const std::vector<SendTo>& sends,
                             const std::vector<ReceiveFrom>& receives) {
      return message_of<InvalidArgumentError>(
          [&] { rank.transport.exchange(rank.operation("step"), sends, receives); });
    };
    EXPECT_THAT(refusal({{next}, {next}}, {}),
                HasSubstr("step: two messages to rank " + std::to_string(next)));
    EXPECT_THAT(refusal({}, {{next, 1}, {next, 1}}),
                HasSubstr("step: two messages from rank " + std::to_string(next)));
    EXPECT_THAT(refusal({{own}}, {}), HasSubstr("is not a peer of rank " + std::to_string(own)));
    EXPECT_THAT(refusal({}, {{3, 1}}), HasSubstr("rank 3 is not a peer"));
    EXPECT_THAT(refusal({}, {{kAnyRank, 1}}), HasSubstr("no receive_any"));
    std::vector<std::byte> host(8);
    EXPECT_THAT(refusal({{next, host}}, {}), HasSubstr("the pointer is to host memory"));
    sum_up(rank, rank.operation());
  });
}

}  // namespace
}  // namespace tersor::test
