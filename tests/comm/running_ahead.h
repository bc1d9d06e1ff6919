// Memory use of a rank when other ranks run ahead. Rank 1 is late in each collective and receives
// unexpected messages.
#pragma once

#include "tests/comm/ranks.h"
#include "tests/support/heap.h"

#include <gtest/gtest.h>
#include <tersor/sending.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace tersor::testing {

/// A rank's part in one-directional calls.
class RunningAhead {
 public:
  explicit RunningAhead(Transport& ranks)
      : ranks_(ranks), own_(kCount, 1.0f), all_(kCount * static_cast<std::size_t>(ranks.ranks())) {}

  /// Expects each call to stay within its memory bound on this rank.
  void expect_bounded() {
    expect_bounded("broadcast", [&] { broadcast(ranks_, own_, 0, options_); });
    expect_bounded("reduce", [&] { reduce(ranks_, own_, own_, 0, options_); });
    expect_bounded("gather", [&] { gather(ranks_, own_, all_, 2, options_); });
    expect_bounded("scatter", [&] { scatter(ranks_, all_, own_, 0, options_); });
    expect_bounded("allgather", [&] { allgather(ranks_, own_, all_, options_); });
    expect_bounded("allreduce", [&] { allreduce(ranks_, own_, options_); });
    expect_bounded("all_to_all", [&] { deal(); });
    expect_bounded("send", [&] { hand_on(); });
  }

 private:
  static constexpr std::size_t kCount = 100'000;
  static constexpr int kCalls = 400;                            // 152 MiB
  static constexpr std::size_t kBound = std::size_t{96} << 20;  // three ranks, two peers, 16 MiB

  template <typename Call>
  void expect_bounded(const std::string& name, Call&& call) {
    call();  // allocates workspaces
    meet();
    const std::size_t before = heap_bytes();
    meet();
    if (ranks_.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (int number = 0; number < kCalls; ++number) call();
    meet();
    EXPECT_LE(heap_bytes(), before + kBound) << name << " on rank " << ranks_.rank();
    meet();
  }

  void meet() {
    ranks_.barrier({.name = "meet", .tag = ranks_.reserve_tags(1)}).wait_synchronize();
  }

  /// Sends all values from rank 0 to rank 1.
  void deal() {
    std::vector<std::size_t> sent(static_cast<std::size_t>(ranks_.ranks())), received = sent;
    if (ranks_.rank() == 0) sent[1] = kCount;
    if (ranks_.rank() == 1) received[0] = kCount;
    const std::size_t gives = ranks_.rank() == 0 ? kCount : 0,
                      gets = ranks_.rank() == 1 ? kCount : 0;
    all_to_all(ranks_, ConstValueSpan(own_).subspan(0, gives), ValueSpan(all_).subspan(0, gets), 1,
               {.sent = sent, .received = received}, options_);
  }

  /// A pipeline through all ranks.
  void hand_on() {
    const int rank = ranks_.rank();
    if (rank > 0) receive(ranks_, own_, rank - 1, options_).wait();
    if (rank + 1 < ranks_.ranks()) send(ranks_, own_, rank + 1, options_).wait();
  }

  Transport& ranks_;
  Values own_, all_;
  const CollectiveOptions options_{.codec = "none"};
};

}  // namespace tersor::testing
