// Ranks that are processes, on one host or on many, over TCP connections of Tersor's own: needs no
// MPI. Target tersor::tcp. docs/tcp.md has what it costs and what it promises.
#pragma once

#include <tersor/forwarding.h>

#include <chrono>
#include <cstdint>
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

/// The protection of all bytes after the handshake.
enum class TcpProtection : std::uint8_t {
  kNone,          ///< whoever can change bytes on their way can change sums
  kAuthenticate,  ///< a changed, repeated, reordered or missing byte ends in TransportError
  kEncrypt,       ///< kAuthenticate, and nobody on the way can read the bytes
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
  /// A secret that the ranks share beforehand, the same on all ranks, at least 16 bytes, best the
  /// output of `openssl rand -hex 32`. With it, whoever reads the store or the file cannot join the
  /// world. Default: none.
  std::string secret = {};
  /// The same on all ranks. docs/tcp.md has the cost.
  TcpProtection protect = TcpProtection::kNone;
};

/// Moves bytes over TCP, between each two ranks once they need it. Any thread may use it. Both ends
/// of a connection prove by HMAC-SHA256 that they know the world's secret, the caller first. After
/// these proofs only TcpOptions::protect authenticates bytes. Hosts are told apart by their names
/// and by when they were started.
///
/// All constructors throw InvalidArgument for a rank that is none, options out of range and a
/// secret of fewer than 16 bytes; TransportError for an address that does not resolve or is not
/// this host's, a port that is taken, and ranks that do not come in time, naming the first of them.
class TcpTransport final : public ForwardingTransport {
 public:
  /// Ranks meet in a store that all of them reach, and which had no world before (of one that had,
  /// prefix the keys). Rank 0 leaves a secret there that is drawn for this world: whoever reads the
  /// store can join the world, unless the ranks have TcpOptions::secret.
  TcpTransport(KeyValueStore& store, int rank, int ranks, const TcpOptions& options = {});

  /// Ranks meet in a file that all of them reach, and that no run had before: InvalidArgument where
  /// rank 0 finds it. It stays, readable by its owner alone, since it holds the world's secret:
  /// InvalidArgument if another user owns, may read or may write the table.
  TcpTransport(const std::filesystem::path& file, int rank, int ranks,
               const TcpOptions& options = {});

  /// Ranks know where each of them listens ("10.0.0.3:4711", "node3:4711", "[fd00::3]:4711"), the
  /// same list on all, and a secret of at least 16 bytes, best the output of `openssl rand -hex
  /// 32`: any other text than 64 hexadecimal digits is stretched (0.1 s, 64 MiB). Ranks of equal
  /// hosts in their addresses share a host. TcpOptions::address is not looked at.
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
