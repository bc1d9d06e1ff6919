// A killed rank, between steps or during a called or replayed step. The other ranks get an error
// within the deadline and no wrong sum, and continue without the rank in the same processes.

#include "tests/gpu/hooks.h"
#include "tests/gpu/nccl/reduction.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

namespace tersor::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::chrono::seconds kDeadline{5}, kSlack{10};
/// A single chunk: frames of the previous step would also fit.
const Case kWanted{Algorithm::kTwoShot, "int8", 150'001};
constexpr std::uint64_t kStoppedSeed = 1;

enum class Steps { kCalled, kReplayed };
enum class Death { kBetweenSteps, kInTheMiddle };

/// A file left by the last rank before the kill.
fs::path mark_of(const RankIdentity& identity) { return identity.file.string() + ".dead"; }

void die(const RankIdentity& identity) {
  std::ofstream{mark_of(identity)};
  std::raise(SIGKILL);
}

/// The last rank dies during its next step. Rank 0 starts the step later, and no rank can complete
/// the step before.
void before_the_last_step(const RankIdentity& identity, Death death) {
  if (identity.rank == identity.ranks - 1) {
    if (death == Death::kBetweenSteps) die(identity);
    std::thread([identity] {
      std::this_thread::sleep_for(300ms);
      die(identity);
    }).detach();
  }
  while (identity.rank == 0 && !fs::exists(mark_of(identity))) std::this_thread::sleep_for(1ms);
}

void require_error(const std::function<void()>& step) {
  constexpr int kMost = 3;
  const auto start = Clock::now();
  try {
    for (int i = 0; i < kMost; ++i) step();
  } catch (const TransportError&) {
    require(Clock::now() - start < kDeadline + kSlack, "the error came long after the deadline");
    return;
  }
  throw Error("a rank was killed, and nobody noticed");
}

void lose_the_last(const RankIdentity& identity, Steps steps, Death death) {
  const Values expected = reduced_on_cpu(kWanted, identity.ranks).front();
  const Values expected_next = reduced_on_cpu(kWanted, identity.ranks, 1, kStoppedSeed).front();
  const Stream stream;
  const auto owned_transport = make_nccl_transport(meet(identity));
  Transport& transport = *owned_transport;
  RepeatedAllreduce on_device(kWanted, transport, {Memory::kDevice, stream.view()});
  on_device.options().timeout = kDeadline;
  on_device.call();
  std::optional<Graph> graph;
  if (steps == Steps::kReplayed) graph.emplace(stream, [&] { on_device.call(); });
  const auto step = [&] {
    graph ? graph->replay(stream) : on_device.call();
    stream.synchronize();
    transport.progress();
  };
  step();
  on_device.require_bits(expected);
  on_device.draw(kStoppedSeed);
  before_the_last_step(identity, death);
  require_error(step);
  on_device.require_bits_or_nan(expected_next);
}

void go_on(const RankIdentity& identity) {
  const Stream stream;
  const auto owned_transport = make_nccl_transport(meet(identity, ".after"));
  Transport& transport = *owned_transport;
  RepeatedAllreduce on_device(kWanted, transport, {Memory::kDevice, stream.view()});
  on_device.call();
  on_device.require_bits(reduced_on_cpu(kWanted, identity.ranks).front());
}

template <Steps steps, Death death>
void survive(const RankIdentity& identity) {
  lose_the_last(identity, steps, death);
  go_on({identity.rank, identity.ranks - 1, identity.file});
}

const Registered kBetweenCalls("dead_between_calls", survive<Steps::kCalled, Death::kBetweenSteps>);
const Registered kInACall("dead_in_a_call", survive<Steps::kCalled, Death::kInTheMiddle>);
const Registered kBetweenReplays("dead_between_replays",
                                 survive<Steps::kReplayed, Death::kBetweenSteps>);
const Registered kInAReplay("dead_in_a_replay", survive<Steps::kReplayed, Death::kInTheMiddle>);

/// Memory freed in stream order after an error must outlive the kernels that read the memory, even
/// if nobody waits for the handle.
template <bool waits>
void order_after_an_error(const RankIdentity& identity) {
  const Stream stream;
  const auto transport = make_nccl_transport(meet(identity));
  constexpr std::size_t kBytes = 1000;
  const Buffer sent(kBytes, Memory::kDevice);
  const Operation operation{
      .name = "gather", .timeout = kDeadline, .memory = Memory::kDevice, .stream = stream.view()};
  transport->begin(operation);  // outside of a collective, all_gather itself orders the stream
  Handle handle = transport->all_gather(operation, sent.span(), kBytes);
  transport->abort("an error between the start and the wait");
  const std::size_t before = hooks().calls("cudaStreamWaitEvent");
  bool reported = !waits;
  try {
    if (waits) handle.wait_synchronize();
  } catch (const TransportError&) {
    reported = true;
  }
  if (!waits) handle = Handle();
  require(reported, "the wait did not report the error");
  require(hooks().calls("cudaStreamWaitEvent") > before, "the stream has no order");
  stream.synchronize();
}

const Registered kOrdered("ordered_after_an_error", order_after_an_error<true>);
const Registered kOrderedByDrop("ordered_by_a_dropped_handle", order_after_an_error<false>);

class NcclFailure : public OverNccl {};

TEST_F(NcclFailure, OrdersTheStreamAfterQueuedKernels) {
  if (!hooks().are_there()) GTEST_SKIP() << "this device counts no calls";
  expect_passes(kOrdered, 2);
  expect_passes(kOrderedByDrop, 2);
}

TEST_F(NcclFailure, SurvivorsContinueAfterRankKilledBetweenCalls) {
  expect_all_but_the_last_pass(kBetweenCalls, 4);
}
TEST_F(NcclFailure, SurvivorsOfARankKilledInACallContinue) {
  expect_all_but_the_last_pass(kInACall, 4);
}
TEST_F(NcclFailure, SurvivorsContinueAfterRankKilledBetweenReplays) {
  expect_all_but_the_last_pass(kBetweenReplays, 4);
}
TEST_F(NcclFailure, SurvivorsContinueAfterRankKilledInReplay) {
  expect_all_but_the_last_pass(kInAReplay, 4);
}

}  // namespace
}  // namespace tersor::test
