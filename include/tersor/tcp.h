// Ranks that are processes, on one host or on many, over TCP connections of Tersor's own: needs no
// MPI. Target tersor::tcp. docs/tcp.md has what it costs and what it promises.
#pragma once

#include <tersor/forwarding.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tersor {

namespace host {
class World;
}

/// Where ranks leave each other words until they are connected: PyTorch's store, etcd, … Called by
/// the constructor of TcpTransport alone, on its thread.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  /// Leaves a value under a key, for all ranks.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until somebody has set it. Throws TransportError where nobody has by then.
  virtual std::string get(const std::string& key, Clock::time_point until) = 0;
};

struct TcpOptions {
  /// Where this rank listens and others call it: an address, a host's name or an interface
  /// ("10.0.0.3", "node3", "eth0"). Empty: what the host's own name stands for, or else its first
  /// interface that is not the loopback.
  std::string address = {};
  /// Connections of each pair of ranks, 1 to 16, the same on all ranks: payloads from 256 KiB on
  /// are shared among them. More than 1 where one connection does not fill the link.
  int connections = 1;
  /// How long ranks wait for each other to come: in the constructor, with a list of addresses for a
  /// rank that does not listen yet, and where two first have something for each other, for a
  /// network that is away. What they do afterwards has the deadlines of Operation.
  std::chrono::milliseconds timeout = kDefaultTimeout;
};

/// Moves bytes over TCP, between each two ranks once they need it. Any thread may use it. Whoever
/// connects proves by HMAC-SHA256 that it knows the world's secret, and is proven the same, before
/// anything it says is used; what travels afterwards is not encrypted. Hosts are told apart by
/// their names and by when they were started.
///
/// All constructors throw InvalidArgument for a rank that is none, options out of range and a
/// secret of fewer than 16 bytes; TransportError for an address that does not resolve or is not
/// this host's, a port that is taken, and ranks that do not come in time, naming the first of them.
class TcpTransport final : public ForwardingTransport {
 public:
  /// Ranks meet in a store that all of them reach, and which had no world before (of one that had,
  /// prefix the keys). Rank 0 leaves a secret there that is drawn for this world.
  TcpTransport(KeyValueStore& store, int rank, int ranks, const TcpOptions& options = {});

  /// Ranks meet in a file that all of them reach, and that no run had before: InvalidArgument where
  /// rank 0 finds it. It stays, readable by its owner alone, since it holds the world's secret;
  /// whose table is another user's, or may be written by others, gets InvalidArgument.
  TcpTransport(const std::filesystem::path& file, int rank, int ranks,
               const TcpOptions& options = {});

  /// Ranks know where each of them listens ("10.0.0.3:4711", "node3:4711", "[fd00::3]:4711"), the
  /// same list on all, and a secret of at least 16 bytes, which somebody drew at random. Ranks of
  /// equal hosts in their addresses share a host. TcpOptions::address is not looked at.
  TcpTransport(std::span<const std::string> addresses, std::string_view secret, int rank,
               const TcpOptions& options = {});

  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  /// Says goodbye and ends all connections, for the channels and splits that still live as well:
  /// what they are asked for later, or wait for now, ends in TransportError. Any thread.
  void close();

 private:
  explicit TcpTransport(std::shared_ptr<host::World> world);

  std::shared_ptr<host::World> world_;
};

}  // namespace tersor
