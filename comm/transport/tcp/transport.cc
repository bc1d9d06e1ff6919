// Implements <tersor/tcp.h>: the rendezvous of ranks. Each rank stores the listening address and
// the host in a key-value store, under the rank's number. Rank 0 collects the entries and stores a
// table of all entries with a secret. The other ranks wait for the table.
#include <tersor/error.h>
#include <tersor/tcp.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <system_error>
#include <utility>

#include "comm/transport/host/hosts.h"
#include "comm/transport/tcp/address.h"
#include "comm/transport/tcp/file_store.h"
#include "comm/transport/tcp/rendezvous.h"
#include "comm/transport/tcp/wire.h"

namespace tersor::tcp {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::hours kMaxTimeout{24 * 365};  // to prevent overflow of deadlines
constexpr int kMaxConnections = 16;
constexpr int kMaxRanks = 1 << 16;
constexpr std::string_view kTableKey = "table";
constexpr std::string_view kTableTitle = "tersor tcp 1";

void check(int rank, std::size_t ranks, const TcpOptions& options) {
  if (ranks < 1 || ranks > kMaxRanks)
    throw InvalidArgumentError("ranks is " + std::to_string(ranks) + ": give 1 to " +
                               std::to_string(kMaxRanks));
  if (rank < 0 || static_cast<std::size_t>(rank) >= ranks)
    throw InvalidArgumentError("rank is " + std::to_string(rank) + ": give 0 to " +
                               std::to_string(ranks - 1));
  if (options.connections < 1 || options.connections > kMaxConnections)
    throw InvalidArgumentError("connections is " + std::to_string(options.connections) +
                               ": give 1 to " + std::to_string(kMaxConnections));
  if (options.timeout.count() < 0)
    throw InvalidArgumentError("timeout is " + std::to_string(options.timeout.count()) +
                               " ms: give 0 or more");
  if (!options.secret.empty()) Secret::check(options.secret);
}

Clock::duration timeout_of(const TcpOptions& options) {
  return std::min<std::chrono::milliseconds>(options.timeout, kMaxTimeout);
}

Clock::time_point deadline_of(const TcpOptions& options) {
  return Clock::now() + timeout_of(options);
}

std::string key_of(int rank) { return "rank-" + std::to_string(rank); }

/// A rank's entry: a line with the endpoint, a line with the host.
struct Entry {
  std::string endpoint;
  std::string host;

  std::string text() const { return endpoint + "\n" + host + "\n"; }
  bool operator==(const Entry&) const = default;
};

struct Table {
  std::string secret;
  std::vector<Entry> entries = {};

  ~Table() { wipe(secret); }

  std::string text() const {
    std::string all = std::string(kTableTitle) + "\n" + secret + "\n";
    for (const Entry& entry : entries) all += entry.text();
    return all;
  }
};

/// Splits an entry into lines. Throws TransportError for invalid entries.
std::vector<std::string> lines_of(const std::string& text, std::size_t count) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.size() != count || std::ranges::any_of(lines, &std::string::empty))
    throw TransportError(
        "the rendezvous store or file has contents of another program: use a new name for each "
        "run");
  return lines;
}

Table parse_table(const std::string& text, int ranks) {
  const auto lines = lines_of(text, 2 + 2 * static_cast<std::size_t>(ranks));
  if (lines[0] != kTableTitle) lines_of("", 1);
  Table table{.secret = lines[1]};
  for (std::size_t line = 2; line < lines.size(); line += 2)
    table.entries.push_back({lines[line], lines[line + 1]});
  return table;
}

std::string get_from_rank(KeyValueStore& store, int rank, const std::string& key,
                          Clock::time_point until) {
  try {
    return store.get(key, until);
  } catch (const TransportError& error) {
    throw TransportError("rank " + std::to_string(rank) +
                         " missed the rendezvous: " + error.what());
  }
}

Table gather(KeyValueStore& store, int ranks, const Entry& own, Clock::time_point until) {
  Table table{.secret = new_secret(), .entries = {own}};
  for (int rank = 1; rank < ranks; ++rank) {
    const auto lines = lines_of(get_from_rank(store, rank, key_of(rank), until), 2);
    table.entries.push_back({lines[0], lines[1]});
  }
  if (ranks > 1) store.set(std::string(kTableKey), table.text());
  return table;
}

Table exchange(KeyValueStore& store, int rank, int ranks, const Entry& own,
               Clock::time_point until) {
  if (rank == 0) return gather(store, ranks, own, until);
  store.set(key_of(rank), own.text());
  Table table = parse_table(get_from_rank(store, 0, std::string(kTableKey), until), ranks);
  if (table.entries[static_cast<std::size_t>(rank)] != own)
    throw TransportError("the rendezvous store or file has an entry of another process for rank " +
                         std::to_string(rank) +
                         ", from an earlier run or a process with the same rank: use a new name "
                         "for each run");
  return table;
}

RankAddress make_rank_address(const Table& table, int rank, const TcpOptions& options) {
  RankAddress address{.rank = rank,
                      .secret = Secret(table.secret).combined_with(options.secret),
                      .connections = static_cast<std::size_t>(options.connections),
                      .protect = options.protect,
                      .timeout = timeout_of(options)};
  std::vector<std::string> hosts;
  for (const Entry& entry : table.entries) {
    const std::string owner = "the address of rank " + std::to_string(address.endpoints.size());
    address.endpoints.push_back(resolve(parse_address(entry.endpoint), owner));
    hosts.push_back(entry.host);
  }
  address.host_names = host::number_hosts(hosts);
  return address;
}

std::unique_ptr<Listener> listener_at(const Endpoint& own, const std::string& requested) try {
  return std::make_unique<Listener>(own);
} catch (const TransportError& error) {
  if (requested.empty()) throw AddressError(error.what() + std::string("; give another address"));
  throw AddressError("this rank's address, \"" + requested + "\": " + error.what());
}

RankAddress join_via_store(KeyValueStore& store, int rank, int ranks, const TcpOptions& options) {
  check(rank, static_cast<std::size_t>(std::max(ranks, 0)), options);
  Endpoint own = own_endpoint(options.address);
  auto listener = listener_at(own, options.address);
  own.port(listener->port());
  const Table table =
      exchange(store, rank, ranks, {text_of(own), host_identity()}, deadline_of(options));
  RankAddress address = make_rank_address(table, rank, options);
  address.listener = std::move(listener);
  return address;
}

// Rank 0 removes the entries after reading them. The table stays for late ranks.
RankAddress join_via_file(const fs::path& file, int rank, int ranks, const TcpOptions& options) {
  check(rank, static_cast<std::size_t>(std::max(ranks, 0)), options);
  FileStore store(file.string() + ".");
  const fs::path table = store.file(std::string(kTableKey));
  std::error_code ignored;
  if (rank == 0 && fs::exists(table, ignored))
    throw InvalidArgumentError(table.string() + " exists: use a new name for each run");
  // Written only after all ranks have come.
  if (rank == 0) store.check_writable(std::string(kTableKey));
  try {
    RankAddress address = join_via_store(store, rank, ranks, options);
    for (int other = 1; rank == 0 && other < ranks; ++other)
      fs::remove(store.file(key_of(other)), ignored);
    return address;
  } catch (...) {
    store.remove_stored();
    throw;
  }
}

RankAddress join_via_addresses(std::span<const std::string> addresses, std::string_view secret,
                               int rank, const TcpOptions& options) {
  check(rank, addresses.size(), options);
  Table table{.secret = std::string(secret)};
  for (const std::string& address : addresses)
    table.entries.push_back({address, parse_address(address).host});
  RankAddress address = make_rank_address(table, rank, options);
  address.listen_deadline = deadline_of(options);
  address.listener = std::make_unique<Listener>(address.endpoints[static_cast<std::size_t>(rank)]);
  return address;
}

std::unique_ptr<Transport> transport_at(RankAddress address) {
  return make_transport(make_wire(std::move(address)));
}

}  // namespace

// No rank connects to a rank other than rank 0.
std::unique_ptr<Transport> make_rendezvous_transport(const std::string& address, int rank,
                                                     int ranks, const TcpOptions& options) {
  const auto count = static_cast<std::size_t>(std::max(ranks, 0));
  check(rank, count, options);
  RankAddress own{.rank = rank,
                  .endpoints = {count, Endpoint(asio::ip::address_v4::loopback(), 0)},
                  .host_names = std::vector<int>(count),
                  .secret = Secret(options.secret),
                  .protect = TcpProtection::kEncrypt,
                  .listen_deadline = deadline_of(options),
                  .timeout = timeout_of(options)};
  own.endpoints[0] = resolve(parse_address(address), "the address of rank 0");
  own.listener = std::make_unique<Listener>(own.endpoints[static_cast<std::size_t>(rank)]);
  return transport_at(std::move(own));
}

}  // namespace tersor::tcp

namespace tersor {

std::unique_ptr<Transport> make_tcp_transport(KeyValueStore& store, int rank, int ranks,
                                              const TcpOptions& options) {
  return tcp::transport_at(tcp::join_via_store(store, rank, ranks, options));
}

std::unique_ptr<Transport> make_tcp_transport(const std::filesystem::path& file, int rank,
                                              int ranks, const TcpOptions& options) {
  return tcp::transport_at(tcp::join_via_file(file, rank, ranks, options));
}

std::unique_ptr<Transport> make_tcp_transport(std::span<const std::string> addresses,
                                              std::string_view secret, int rank,
                                              const TcpOptions& options) {
  return tcp::transport_at(tcp::join_via_addresses(addresses, secret, rank, options));
}

}  // namespace tersor
