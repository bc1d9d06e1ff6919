// The handshake of a connection: both ends prove knowledge of the world's secret. The classes have
// no sockets: received bytes go in, bytes to send come out.
//
//   client   Hello       both ranks, the world's shape, a new nonce
//   server   Challenge   a new nonce and the server's rank
//   client   Digest      a MAC over hello and challenge
//   server   Answer      a verdict, and a MAC over hello, challenge and verdict
//
// The key of each MAC is the world's secret, and each MAC covers the role of its sender. The client
// sends the first MAC: a connection from an unknown process receives no MAC. Both nonces are new
// for each connection, and a recorded message is never valid again. No rank answers for another
// rank. Both ends derive the keys of the protected bytes from the same MAC (records.h). Without
// TcpOptions::protect nothing authenticates the bytes after the handshake.
#pragma once

#include <tersor/span.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "comm/transport/tcp/secret.h"

namespace tersor::tcp {

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t from = 0;         ///< rank
  std::uint32_t to = 0;           ///< rank
  std::uint32_t ranks = 0;        ///< of the world
  std::uint16_t connections = 0;  ///< number of connections per pair
  std::uint16_t connection = 0;   ///< number of this connection
  std::uint64_t protection = 0;   ///< TcpOptions::protect
  Nonce nonce{};

  static constexpr std::uint64_t kMagic = 0x0032'5043'5453'5254;  // "TRSTCP2\0" read as bytes
};
static_assert(sizeof(Hello) == 64 && std::is_trivially_copyable_v<Hello>);

struct Challenge {
  Nonce nonce{};
  std::uint64_t rank = 0;  ///< rank of the server
};
static_assert(sizeof(Challenge) == 40 && std::is_trivially_copyable_v<Challenge>);

/// The server's decision about a client with the secret.
enum class Verdict : std::uint64_t {
  kAccepted = 1,
  kDuplicate,         ///< both ranks connected at once; the server's connection is used
  kRankTaken,         ///< another process has the client's rank and a connection
  kWrongRank,         ///< the server is not the called rank
  kOtherGroupSize,    ///< different numbers of ranks
  kOtherConnections,  ///< different numbers of connections per pair
  kOtherProtection,   ///< different TcpOptions::protect
};
inline constexpr std::uint64_t kLastVerdict = static_cast<std::uint64_t>(Verdict::kOtherProtection);

/// The last message. All zeros if the client does not know the secret.
struct Answer {
  std::uint64_t verdict = 0;
  Digest mac{};
};
static_assert(sizeof(Answer) == 40 && std::is_trivially_copyable_v<Answer>);

/// The content of both MACs: hello, challenge, and the verdict (0 in the client's MAC).
struct Transcript {
  Hello hello;
  Challenge challenge;
  std::uint64_t verdict = 0;
};
static_assert(sizeof(Transcript) == 112 && std::is_trivially_copyable_v<Transcript>);

/// The keys of a connection's bytes, one per direction.
struct SessionKeys {
  Digest send;
  Digest receive;
};

/// The common part of both ends.
class Handshake {
 public:
  Handshake(const Secret& secret, std::size_t first_bytes)
      : secret_(secret), expected_(first_bytes) {}
  virtual ~Handshake() = default;

  /// The buffer of the next received bytes; empty once there is nothing more to receive.
  ByteSpan receive_buffer() { return ByteSpan(message_).subspan(filled_, expected_ - filled_); }
  /// Takes received bytes. False if the other end does not know the secret, or sends another
  /// protocol: send `reply`, then close the connection.
  bool on_received(std::size_t bytes);
  /// The bytes to send after the last received bytes, or none.
  ConstByteSpan reply() const { return reply_; }

 protected:
  /// Takes a whole message. False as `on_received`.
  virtual bool on_message() = 0;
  /// Returns the whole message. The next message has `next_bytes` bytes.
  template <typename Message>
  Message read(std::size_t next_bytes);
  SessionKeys derive_keys(MacPurpose send, MacPurpose receive) const;

  const Secret& secret_;
  Transcript transcript_{};
  ConstByteSpan reply_;

 private:
  std::array<std::byte, sizeof(Hello)> message_{};
  std::size_t expected_, filled_ = 0;  // bytes
};

class ClientHandshake final : public Handshake {
 public:
  ClientHandshake(const Secret& secret, const Hello& hello);

  ConstByteSpan first_message() const;
  bool authenticated() const { return verdict_.has_value(); }
  /// The authenticated verdict; kWrongRank if another rank answered.
  std::optional<Verdict> verdict() const { return verdict_; }
  SessionKeys keys() const { return derive_keys(MacPurpose::kClientKey, MacPurpose::kServerKey); }

 private:
  bool on_message() override;
  bool check_answer();

  std::optional<Digest> client_mac_;  // once there is a challenge
  std::optional<Verdict> verdict_;
};

class ServerHandshake final : public Handshake {
 public:
  ServerHandshake(const Secret& secret, std::uint32_t rank)
      : Handshake(secret, sizeof(Hello)), rank_(rank) {}

  /// The authenticated client, or none.
  std::optional<Hello> client() const;
  /// The last message, for an authenticated client.
  Answer answer(Verdict verdict);
  /// After the last message.
  SessionKeys keys() const { return derive_keys(MacPurpose::kServerKey, MacPurpose::kClientKey); }

 private:
  bool on_message() override;
  bool check_client_mac();

  const std::uint32_t rank_;
  bool has_hello_ = false;
  bool authenticated_ = false;
};

/// The bytes of a message.
template <typename Message>
ConstByteSpan bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace tersor::tcp
