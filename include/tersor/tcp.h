// The TCP transport: ranks are processes on one or several hosts, connected by Tersor without MPI.
// Link the target tersor::tcp. docs/how-to/networks.md describes costs and
// docs/explain/security.md guarantees.
#pragma once

#include <tersor/transport.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tersor {

/// A store in which ranks exchange addresses during the rendezvous, e.g. PyTorch's store or etcd.
/// Only make_tcp_transport calls the store, on the calling thread.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  /// Stores a value under a key, for all ranks.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until a rank has set the key, and returns the value. Throws TransportError at `until`.
  virtual std::string get(const std::string& key, Clock::time_point until) = 0;
};

/// The protection of all bytes after the handshake.
enum class TcpProtection : std::uint8_t {
  /// An attacker on the network can change bytes and therefore sums.
  kNone,
  /// A changed, repeated, reordered or missing byte raises TransportError.
  kAuthenticate,
  /// kAuthenticate, and nobody on the network can read the bytes.
  kEncrypt,
};

/// Options of a TCP transport.
struct TcpOptions {
  /// The address on which this rank listens: an address, a host name or an interface ("10.0.0.3",
  /// "node3", "eth0"). Empty: the address of the own host name, or else the first interface except
  /// the loopback.
  std::string address = {};
  /// Connections per pair of ranks, 1 to 16, equal on all ranks. Payloads of at least 256 KiB are
  /// distributed over the connections. Use more than 1 if one connection does not fill the link.
  int connections = 1;
  /// Timeout of the rendezvous: in make_tcp_transport or, for a list of addresses, until each rank
  /// listens. Also the timeout of the first connection between two ranks if the network is
  /// unreachable. Later operations use Operation::timeout.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// A secret common to all ranks, at least 16 bytes; use the output of `openssl rand -hex 32`. A
  /// reader of the store or file then cannot join the group. By default, there is no secret.
  std::string secret = {};
  /// Must be equal on all ranks. docs/how-to/networks.md lists the costs.
  TcpProtection protect = TcpProtection::kNone;
};

/// A TCP transport connects two ranks at their first message. Any thread may use the transport.
/// Both ends of a connection prove by HMAC-SHA256 that they know the group's secret, the caller
/// first. After these proofs, only TcpOptions::protect authenticates bytes. Host names and boot
/// times identify hosts.
///
/// The functions with a store or a file block until the rendezvous is complete. The function with
/// addresses does not wait for other ranks. All three throw InvalidArgumentError for an invalid
/// rank, for options out of range, and for a secret of fewer than 16 bytes. They throw
/// TransportError for an unresolvable or foreign address, for a port in use, and for ranks that
/// miss the rendezvous; the message names the first missing rank.

/// Rendezvous in a store that all ranks reach. The store must not contain an earlier group;
/// otherwise, prefix the keys. Rank 0 stores a new random secret there. Any reader of the store can
/// join the group, unless the ranks have TcpOptions::secret.
std::unique_ptr<Transport> make_tcp_transport(KeyValueStore& store, int rank, int ranks,
                                              const TcpOptions& options = {});

/// Rendezvous in a file that all ranks reach. Each run needs a new file; throws
/// InvalidArgumentError on rank 0 if the file exists. The file stays and only its owner can read
/// it, because it contains the group's secret. Throws InvalidArgumentError if another user owns,
/// may read or may write the file.
std::unique_ptr<Transport> make_tcp_transport(const std::filesystem::path& file, int rank,
                                              int ranks, const TcpOptions& options = {});

/// Connects ranks with known addresses ("10.0.0.3:4711", "node3:4711", "[fd00::3]:4711"), the same
/// list on all ranks. `secret` has at least 16 bytes; use the output of `openssl rand -hex 32`. Any
/// text except 64 hexadecimal digits is stretched (0.1 s, 64 MiB). Ranks with equal host parts
/// share a host. TcpOptions::address is ignored.
std::unique_ptr<Transport> make_tcp_transport(std::span<const std::string> addresses,
                                              std::string_view secret, int rank,
                                              const TcpOptions& options = {});

}  // namespace tersor
