// The handshake of a connection: both ends prove knowledge of the world's secret. The classes have
// no sockets: received bytes go in, bytes to send come out.
//
//   caller    Hello       both ranks, the world's shape, a new nonce
//   answerer  Challenge   a new nonce and the answering rank
//   caller    Proof       a MAC over hello and challenge
//   answerer  Answer      a verdict, and a MAC over hello, challenge and verdict
//
// The key of each MAC is the world's secret, and each MAC covers the role of its sender. The caller
// proves first: a connection from an unknown process receives no MAC. Both nonces are new for each
// connection, and a recorded message is never valid again. No rank answers for another rank. Both
// ends derive the keys of the protected bytes from the same MAC (records.h). Without
// TcpOptions::protect nothing authenticates the bytes after the handshake.
#pragma once

#include <tersor/span.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "comm/transport/tcp/proof.h"

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
  std::uint64_t rank = 0;  ///< rank of the answerer
};
static_assert(sizeof(Challenge) == 40 && std::is_trivially_copyable_v<Challenge>);

/// The answerer's decision about a caller with the secret.
enum class Verdict : std::uint64_t {
  kWelcome = 1,
  kCrossed,           ///< both ranks connected at once; the answerer's connection is used
  kTaken,             ///< another process has the caller's rank and a connection
  kOtherRank,         ///< the answerer is not the called rank
  kOtherRanks,        ///< different numbers of ranks
  kOtherConnections,  ///< different numbers of connections per pair
  kOtherProtection,   ///< different TcpOptions::protect
};
inline constexpr std::uint64_t kLastVerdict = static_cast<std::uint64_t>(Verdict::kOtherProtection);

/// The last message. All zeros if the caller did not prove knowledge of the secret.
struct Answer {
  std::uint64_t verdict = 0;
  Proof proof{};
};
static_assert(sizeof(Answer) == 40 && std::is_trivially_copyable_v<Answer>);

/// The content of both proofs: hello, challenge, and the verdict (0 in the caller's proof).
struct Transcript {
  Hello hello;
  Challenge challenge;
  std::uint64_t verdict = 0;
};
static_assert(sizeof(Transcript) == 112 && std::is_trivially_copyable_v<Transcript>);

/// The keys of a connection's bytes, one per direction.
struct SessionKeys {
  Proof send;
  Proof receive;
};

/// Both ends.
class End {
 public:
  End(const Secret& secret, std::size_t first_bytes) : secret_(secret), awaited_(first_bytes) {}
  virtual ~End() = default;

  /// The place of the next received bytes; empty once there is nothing more to receive.
  ByteSpan space() { return ByteSpan(message_).subspan(filled_, awaited_ - filled_); }
  /// Takes received bytes. False if the other end does not know the secret, or sends another
  /// protocol: send `reply`, then close the connection.
  bool came(std::size_t bytes);
  /// The bytes to send after the last received bytes, or none.
  ConstByteSpan reply() const { return reply_; }

 protected:
  /// Takes a whole message. False as `came`.
  virtual bool take() = 0;
  /// Returns the whole message. The next message has `next_bytes` bytes.
  template <typename Message>
  Message message(std::size_t next_bytes);
  SessionKeys keys_by(Role sends, Role receives) const;

  const Secret& secret_;
  Transcript transcript_{};
  ConstByteSpan reply_;

 private:
  std::array<std::byte, sizeof(Hello)> message_{};
  std::size_t awaited_, filled_ = 0;  // bytes
};

/// The calling end.
class Caller final : public End {
 public:
  Caller(const Secret& secret, const Hello& hello);

  /// The first bytes to send.
  ConstByteSpan opening() const;
  /// True if the other end knows the secret.
  bool proven() const { return verdict_.has_value(); }
  /// The proven verdict; kOtherRank if another rank answered.
  std::optional<Verdict> verdict() const { return verdict_; }
  SessionKeys keys() const { return keys_by(Role::kCallerSends, Role::kAnswererSends); }

 private:
  bool take() override;
  bool check_answer();

  std::optional<Proof> own_;  // once there is a challenge
  std::optional<Verdict> verdict_;
};

/// The called end.
class Answerer final : public End {
 public:
  Answerer(const Secret& secret, std::uint32_t rank) : End(secret, sizeof(Hello)), rank_(rank) {}

  /// The proven caller, or none.
  std::optional<Hello> caller() const;
  /// The last message, for a proven caller.
  Answer answer(Verdict verdict);
  /// After the last message.
  SessionKeys keys() const { return keys_by(Role::kAnswererSends, Role::kCallerSends); }

 private:
  bool take() override;
  bool check_proof();

  const std::uint32_t rank_;
  bool greeted_ = false;
  bool proven_ = false;
};

/// The bytes of a message.
template <typename Message>
ConstByteSpan bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace tersor::tcp
