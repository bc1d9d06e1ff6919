// A process forked from a rank, like a data loader, exits normally. Its destructors act on copies,
// and the rank continues.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/tcp/fake_peer.h"
#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

constexpr unsigned kChildEndsWithin = 30;  // seconds
constexpr std::size_t kForkBytes = 100'000;

using Transports = std::vector<std::unique_ptr<Transport>>;

/// Exits at once, without the sanitizers' search for threads of the parent process.
[[noreturn]] void end_process(int code) {
  for (;;) syscall(SYS_exit_group, code);
}

/// The exit status of a forked process running `body`: 0 after success in time.
int in_a_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    alarm(kChildEndsWithin);
    try {
      body();
      end_process(0);
    } catch (...) {
      end_process(1);
    }
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

void gather(Transport& transport) {
  const auto own = pattern(kForkBytes, transport.rank(), 0);
  Handle handle = transport.all_gather(operation_of(transport), own, kForkBytes);
  handle.wait_synchronize();
  expect_patterns(handle, transport, kForkBytes, 0);
}

/// Runs a gather on all ranks at once. The transports stay alive.
void gather_all(Transports& transports) {
  std::vector<std::jthread> threads;
  for (auto& transport : transports)
    threads.emplace_back([&] {
      try {
        gather(*transport);
      } catch (const TransportError& error) {
        ADD_FAILURE() << error.what();
      }
    });
}

class TcpFork : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Connected, TcpFork, ::testing::Bool());

TEST_P(TcpFork, ChildDestructorsDoNotDisturbParent) {
  auto transports = tcp_transports(3, {.connections = 2});
  if (GetParam()) gather_all(transports);
  EXPECT_EQ(in_a_child([&] { transports.clear(); }), 0) << "it waits for threads that it has not";
  for (int round = 0; round < 3; ++round) gather_all(transports);
  run_ranks(std::move(transports), gather);
}

TEST_P(TcpFork, ChildCannotUseTransport) {
  auto transports = tcp_transports(2);
  if (GetParam()) gather_all(transports);
  const auto use = [&] {
    try {
      transports[0]->barrier(operation_of(*transports[0])).wait_synchronize();
    } catch (const InvalidArgumentError& error) {
      end_process(says(error.what(), "this process was forked") ? 0 : 2);
    }
  };
  EXPECT_EQ(in_a_child([&] {
              use();
              end_process(3);
            }),
            0);
  run_ranks(std::move(transports), gather);
}

// A forked process may create its own ranks.
TEST(TcpForkedProcess, CreatesOwnTransport) {
  auto transports = tcp_transports(2);
  EXPECT_EQ(in_a_child([] {
              const auto alone = make_tcp_transport(free_addresses(1), "a secret of the tests", 0);
              alone->barrier(operation_of(*alone)).wait_synchronize();
            }),
            0);
  run_ranks(std::move(transports), gather);
}

}  // namespace
}  // namespace tersor::test
