// Programs started by a rank inherit none of the rank's descriptors.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/tcp/meeting.h"
#include "tests/tcp/system_calls.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

namespace fs = std::filesystem;

std::set<std::string> descriptors() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
    names.insert(entry.path().filename().string());
  return names;
}

/// True if the system closes the descriptor on exec, or if the descriptor is already closed.
bool closes_on_exec(const std::string& descriptor) {
  constexpr unsigned long kFlag = 02'000'000;
  std::ifstream stream("/proc/self/fdinfo/" + descriptor);
  for (std::string word; stream >> word;)
    if (word == "flags:" && stream >> word) return (std::stoul(word, nullptr, 8) & kFlag) != 0;
  return true;
}

void exchange_patterns(Transport& transport) {
  const auto own = pattern(1000, transport.rank(), 0);
  transport.all_gather(operation_of(transport), own, own.size()).wait_synchronize();
}

// Covers descriptors of listeners, of outgoing and accepted connections, and of polling.
TEST(TcpDescriptors, AreCloseOnExec) {
  const auto before = descriptors();
  std::size_t own = 0;
  const InheritedDescriptors inherited;
  {
    auto transports = tcp_transports(3);
    run_ranks(std::move(transports), [&](Transport& transport) {
      exchange_patterns(transport);
      if (transport.rank() == 0)
        for (const std::string& descriptor : descriptors())
          if (!before.contains(descriptor)) {
            EXPECT_TRUE(closes_on_exec(descriptor)) << descriptor;
            ++own;
          }
      transport.barrier(operation_of(transport)).wait_synchronize();
    });
  }
  EXPECT_GE(own, 3u * 2u) << "connections alone";
  EXPECT_GE(inherited.opened(), 3 + 3 * 2) << "listeners and connections: calls that were watched";
  EXPECT_EQ(inherited.calls(), std::vector<std::string>());
}

}  // namespace
}  // namespace tersor::test
