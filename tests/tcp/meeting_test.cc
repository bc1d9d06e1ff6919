// The rendezvous by a store, a file or a list of addresses, and the errors of a failed rendezvous.
#include "tests/tcp/meeting.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "tests/tcp/fake_peer.h"
#include "tests/tcp/system_calls.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

const std::string kMeetingSecret(64, '5');
const TcpOptions kLoopback{.address = "127.0.0.1", .timeout = 20s};

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tersor-tcp-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
    path_ = name;
    umask(0077);  // for files written by the tests
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

using Make = std::function<std::unique_ptr<Transport>(int rank)>;

/// Every rank creates its transport on a thread, then all ranks exchange data.
void expect_connected(int ranks, const Make& make) {
  std::vector<std::unique_ptr<Transport>> transports(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { transports[static_cast<std::size_t>(rank)] = make(rank); });
  }
  run_ranks(std::move(transports), [](Transport& transport) {
    const auto own = static_cast<std::byte>(transport.rank());
    Handle handle = transport.all_gather({.name = "gather", .timeout = 20s}, {&own, 1}, 1);
    handle.wait_synchronize();
    for (const int rank : peers_of(transport))
      EXPECT_EQ(handle.received(rank).front(), static_cast<std::byte>(rank));
    EXPECT_EQ(transport.hosts(), std::vector<int>(static_cast<std::size_t>(transport.ranks()), 0));
  });
}

TEST(TcpMeeting, InAFile) {
  const Folder folder;
  const fs::path file = folder / "meeting";
  const auto make = [&](int rank) { return make_tcp_transport(file, rank, 4, kLoopback); };
  expect_connected(4, make);
  const fs::path table = file.string() + ".table";
  struct stat status {};
  ASSERT_EQ(stat(table.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u) << "others may read the secret";
  EXPECT_FALSE(fs::exists(file.string() + ".rank-1"));
  const std::string again = error_of<InvalidArgumentError>([&] { make(0); });
  EXPECT_TRUE(says(again, "exists: use a new name"));
}

TEST(TcpMeeting, RejectsForeignOrUnwritableFile) {
  const Folder folder;
  const fs::path file = folder / "meeting";
  std::ofstream(file.string() + ".table") << "a\nshopping\nlist\n";
  const std::string error =
      error_of<TransportError>([&] { make_tcp_transport(file, 1, 2, kLoopback); });
  EXPECT_TRUE(says(error, "has contents of another program"));
  const std::string nowhere = error_of<InvalidArgumentError>(
      [&] { make_tcp_transport(folder / "no folder/meeting", 1, 2, kLoopback); });
  EXPECT_TRUE(says(nowhere, "cannot write"));
}

// Rank 0 writes last, so its check of the folder comes before the wait.
TEST(TcpMeeting, AllRanksReportMissingFolder) {
  const Folder folder;
  std::ofstream(folder / "file") << "no folder";
  for (const int rank : {0, 1})
    for (const char* name : {"no folder/meeting", "file/meeting"}) {
      const std::string error = error_of<InvalidArgumentError>(
          [&] { make_tcp_transport(folder / name, rank, 2, kLoopback); });
      EXPECT_TRUE(says(error, "cannot write " + (folder / name).string()));
      EXPECT_TRUE(says(error, ": No such file") || says(error, ": Not a dir")) << error;
    }
}

// An attacker with write access to the folder came first.
TEST(TcpMeeting, DoesNotWriteSecretToExistingFile) {
  const Folder folder;
  const fs::path file = folder / "meeting", trap = folder / "trap";
  std::ofstream(trap) << "mine";
  fs::permissions(trap, fs::perms::all);
  fs::create_symlink(trap, file.string() + ".table.part");
  const auto make = [&](int rank) { return make_tcp_transport(file, rank, 2, kLoopback); };
  expect_connected(2, make);
  EXPECT_EQ(fs::file_size(trap), 4u);
  EXPECT_FALSE(fs::is_symlink(file.string() + ".table"));
}

TEST(TcpMeeting, RejectsTableAccessibleToOthers) {
  const Folder folder;
  const fs::path file = folder / "meeting", table = file.string() + ".table";
  const auto error = [&] {
    return error_of<InvalidArgumentError>([&] { make_tcp_transport(file, 1, 2, kLoopback); });
  };
  std::ofstream(table) << "a table\n";
  for (const fs::perms more :
       {fs::perms::group_write, fs::perms::group_read, fs::perms::others_read}) {
    fs::permissions(table, more, fs::perm_options::add);
    EXPECT_TRUE(says(error(), "other users must not have access"));
    fs::permissions(table, more, fs::perm_options::remove);
  }
  if (geteuid() == 0 && chown(table.c_str(), 12345, 12345) == 0)
    EXPECT_TRUE(says(error(), "must belong to you"));
  fs::remove(table);
  fs::create_symlink(folder / "elsewhere", table);
  EXPECT_TRUE(says(error(), "cannot read " + table.string()));
}

// The previous run was killed between two writes.
TEST(TcpMeeting, DetectsEntryFromPreviousRun) {
  const Folder folder;
  const fs::path file = folder / "meeting";
  std::ofstream(file.string() + ".rank-1") << "127.0.0.1:1\nhost\n";
  const auto first = make_tcp_transport(file, 0, 2, kLoopback);
  const std::string error =
      error_of<TransportError>([&] { make_tcp_transport(file, 1, 2, kLoopback); });
  EXPECT_TRUE(says(error, "has an entry of another process for rank 1"));
  EXPECT_FALSE(fs::exists(file.string() + ".rank-1")) << "the next run finds it";
}

TEST(TcpMeeting, TimeoutLeavesNoFiles) {
  const Folder folder;
  const fs::path file = folder / "meeting";
  const TcpOptions hasty{.address = "127.0.0.1", .timeout = 20ms};
  EXPECT_THROW(make_tcp_transport(file, 1, 2, hasty), TransportError);
  EXPECT_THROW(make_tcp_transport(file, 0, 2, hasty), TransportError);
  EXPECT_TRUE(fs::is_empty(file.parent_path()));
}

TEST(TcpMeeting, ConnectsWithMaximumTimeout) {
  MemoryStore store;
  expect_connected(2, [&](int rank) {
    return make_tcp_transport(
        store, rank, 2,
        TcpOptions{.address = "127.0.0.1", .timeout = std::chrono::milliseconds::max()});
  });
}

TEST(TcpMeeting, ReportsMissingRank) {
  MemoryStore store;
  store.set("rank-1", "127.0.0.1:1\nhost\n");
  const std::string missing = error_of<TransportError>(
      [&] { make_tcp_transport(store, 0, 3, {.address = "127.0.0.1", .timeout = 20ms}); });
  EXPECT_TRUE(says(missing, "rank 2 missed the rendezvous"));
  const std::string first = error_of<TransportError>(
      [&] { make_tcp_transport(store, 1, 3, {.address = "127.0.0.1", .timeout = 20ms}); });
  EXPECT_TRUE(says(first, "rank 0 missed the rendezvous"));
}

TEST(TcpMeeting, ByAddresses) {
  const auto addresses = free_addresses(3);
  expect_connected(3, [&](int rank) {
    std::this_thread::sleep_for(100ms * rank);  // other ranks connect before this rank listens
    return make_tcp_transport(addresses, kMeetingSecret, rank);
  });
}

// The address and the random secret in the store are public. The ranks' own phrase is not.
TEST(TcpMeeting, StoreDoesNotRevealCompletedSecret) {
  MemoryStore store;
  TcpOptions options = kLoopback;
  options.secret = "a phrase that the ranks share";
  std::vector<std::unique_ptr<Transport>> met(2);
  {
    std::jthread second([&] { met[1] = make_tcp_transport(store, 1, 2, options); });
    met[0] = make_tcp_transport(store, 0, 2, options);
  }
  std::istringstream table(store.get("table", Clock::now()));
  std::string title, drawn, address;
  table >> std::ws;
  std::getline(table, title);
  table >> drawn >> address;
  const tcp::Hello hello{.from = 1, .to = 0, .ranks = 2, .connections = 1};
  EXPECT_FALSE(FakePeer(address).call(tcp::Secret(drawn), hello).has_value());
  EXPECT_EQ(FakePeer(address).call(tcp::Secret(drawn).combined_with(options.secret), hello),
            tcp::Verdict::kAccepted);
}

TEST(TcpMeeting, SingleRankStoresNoSecret) {
  MemoryStore store;
  const auto alone = make_tcp_transport(store, 0, 1, kLoopback);
  EXPECT_THROW(store.get("table", Clock::now()), TransportError);
}

TEST(TcpMeeting, ByHostNamesAndIpv6) {
  auto addresses = free_addresses(2);
  addresses[0].replace(0, addresses[0].find(':'), "localhost");
  addresses[1].replace(0, addresses[1].find(':'), "localhost");
  expect_connected(2,
                   [&](int rank) { return make_tcp_transport(addresses, kMeetingSecret, rank); });
  if (!fs::exists("/proc/net/if_inet6") || fs::file_size("/proc/net/if_inet6") == 0) {
    std::ifstream interfaces("/proc/net/if_inet6");
    if (interfaces.peek() == std::ifstream::traits_type::eof()) GTEST_SKIP() << "no IPv6 here";
  }
  MemoryStore store;
  expect_connected(2, [&](int rank) {
    return make_tcp_transport(store, rank, 2, TcpOptions{.address = "::1", .timeout = 20s});
  });
}

TEST(TcpMeeting, ByAnInterface) {
  MemoryStore store;
  expect_connected(2, [&](int rank) {
    return make_tcp_transport(store, rank, 2, TcpOptions{.address = "lo", .timeout = 20s});
  });
}

TEST(TcpMeeting, ByOwnHostName) {
  MemoryStore store;
  expect_connected(
      2, [&](int rank) { return make_tcp_transport(store, rank, 2, TcpOptions{.timeout = 20s}); });
}

// The address is reserved for documentation (RFC 5737), and no host has this address.
TEST(TcpMeeting, IgnoresHostNameWithForeignAddress) {
  const HostNamed named("192.0.2.77");
  MemoryStore store;
  expect_connected(
      2, [&](int rank) { return make_tcp_transport(store, rank, 2, TcpOptions{.timeout = 20s}); });
}

TEST(TcpMeeting, ReportsAddressOfAnotherHost) {
  MemoryStore store;
  const std::string error =
      error_of<TransportError>([&] { make_tcp_transport(store, 0, 1, {.address = "192.0.2.77"}); });
  EXPECT_TRUE(says(error, "this rank's address, \"192.0.2.77\": cannot listen at"));
}

TEST(TcpMeeting, ReportsPortInUse) {
  const auto addresses = free_addresses(2);
  const auto first = make_tcp_transport(addresses, kMeetingSecret, 0);
  const std::string error =
      error_of<TransportError>([&] { make_tcp_transport(addresses, kMeetingSecret, 0); });
  EXPECT_TRUE(says(error, "cannot listen at " + addresses[0] + ": Address already in use"));
}

TEST(TcpMeeting, ReportsUnresolvableAddress) {
  auto addresses = free_addresses(2);
  addresses[1] = "no-such-host.invalid:4711";
  const std::string error =
      error_of<TransportError>([&] { make_tcp_transport(addresses, kMeetingSecret, 0); });
  EXPECT_TRUE(says(error, "the address of rank 1, \"no-such-host.invalid\", does not resolve"));
  MemoryStore store;
  const std::string own = error_of<TransportError>(
      [&] { make_tcp_transport(store, 0, 1, {.address = "no-such-host.invalid"}); });
  EXPECT_TRUE(says(own, "this rank's address, \"no-such-host.invalid\""));
}

TEST(TcpMeeting, ReportsUnreachableRank) {
  const auto addresses = free_addresses(2);
  const auto owned_transport = make_tcp_transport(addresses, kMeetingSecret, 0, {.timeout = 50ms});
  Transport& transport = *owned_transport;
  const std::string error = error_of<TransportError>(
      [&] { exchange_all(transport, {.name = "exchange", .timeout = 20s}, pattern(10, 0, 1)); });
  EXPECT_TRUE(says(error, "rank 1") &&
              says(error, "cannot be reached at " + addresses[1] + ": Connection refused"));
}

// The system accepts connections for a process that never answers.
TEST(TcpMeeting, ReportsAddressOfSilentListener) {
  const auto addresses = free_addresses(2);
  const auto port = static_cast<std::uint16_t>(std::stoi(addresses[1].substr(10)));
  const asio::ip::tcp::acceptor silent(test_context(), {asio::ip::address_v4::loopback(), port});
  const auto owned_transport = make_tcp_transport(addresses, kMeetingSecret, 0, {.timeout = 20s});
  Transport& transport = *owned_transport;
  const std::string error = error_of<TransportError>(
      [&] { exchange_all(transport, {.name = "exchange", .timeout = 500ms}, pattern(10, 0, 1)); });
  EXPECT_TRUE(says(error, "no message from rank 1 within 500 ms (no process has answered at " +
                              addresses[1] + ")"))
      << error;
}

TEST(TcpMeeting, RejectsInvalidArguments) {
  MemoryStore store;
  const auto addresses = free_addresses(2);
  EXPECT_THROW(make_tcp_transport(store, 2, 2), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(store, -1, 2), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(store, 0, 0), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(store, 0, -5), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(store, 0, 1, {.connections = 0}), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(store, 0, 1, {.connections = 17}), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(store, 0, 1, {.timeout = -1ms}), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(store, 0, 2, {.secret = "too short"}), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(addresses, "too short", 0), InvalidArgumentError);
  EXPECT_THROW(make_tcp_transport(addresses, kMeetingSecret, 2), InvalidArgumentError);
  for (const char* text : {"", "host", ":4711", "host:", "host:0", "host:65536", "host:http",
                           "::1:4711", "host:4711x"}) {
    const std::vector<std::string> wrong = {text};
    EXPECT_THROW(make_tcp_transport(wrong, kMeetingSecret, 0), InvalidArgumentError) << text;
  }
}

}  // namespace
}  // namespace tersor::test
