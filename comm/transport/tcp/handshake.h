// How two ends of a connection learn who the other one is, as states without a socket: bytes that
// came go in, bytes to send come out.
//
//   caller    Hello                            who it is, whom it calls, its nonce
//   answerer  Challenge                        its nonce, which rank it is, and its proof of all
//   caller    Proof                            its own of all
//   answerer  Verdict                          8 bytes
//
// Proofs are of the hello, the answerer's nonce and rank and the role, by the world's secret, and
// both nonces are new each time: nothing that was ever said can be said again, and no rank answers
// for another one. Until the other end's
// proof is there, nothing of what it said is used. What follows is neither secret nor safe from who
// can change bytes on their way.
#pragma once

#include <tersor/span.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "comm/transport/tcp/proof.h"

namespace tersor::tcp {

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint32_t from = 0;   ///< rank
  std::uint32_t to = 0;     ///< rank
  std::uint32_t ranks = 0;  ///< of the world
  std::uint16_t lanes = 0;  ///< connections of each pair of ranks
  std::uint16_t lane = 0;   ///< which of them this is
  Nonce nonce{};

  static constexpr std::uint64_t kMagic = 0x0031'5043'5453'5254;  // "TRSTCP1\0" read as bytes
};
static_assert(sizeof(Hello) == 56 && std::is_trivially_copyable_v<Hello>);

struct Challenge {
  Nonce nonce{};
  std::uint64_t rank = 0;  ///< who answers
  Proof proof{};
};
static_assert(sizeof(Challenge) == 72 && std::is_trivially_copyable_v<Challenge>);

/// What the answerer makes of a caller that knows the secret.
enum class Verdict : std::uint64_t {
  kWelcome = 1,
  kCrossed,     ///< calls that one too, and that call counts
  kTaken,       ///< is connected with a rank of that number
  kOtherRank,   ///< is another rank than the one that was called
  kOtherRanks,  ///< has another number of ranks
  kOtherLanes,  ///< has another number of connections of each pair
};
inline constexpr std::uint64_t kLastVerdict = static_cast<std::uint64_t>(Verdict::kOtherLanes);

/// What both ends prove: the hello, and the challenge without its proof.
using Words = std::array<std::byte, sizeof(Hello) + kNonceBytes + sizeof(Challenge::rank)>;

/// Bytes that come until a word of a fixed length is whole.
template <std::size_t kBytes>
class Word {
 public:
  ByteSpan rest() { return ByteSpan(bytes_).subspan(filled_); }
  void came(std::size_t bytes) { filled_ += bytes; }
  bool whole() const { return filled_ == kBytes; }
  ConstByteSpan bytes() const { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_{};
  std::size_t filled_ = 0;
};

/// The end that calls.
class Caller {
 public:
  Caller(const Secret& secret, Hello hello);

  /// What is to be sent before anything comes.
  ConstByteSpan opening() const { return ConstByteSpan(words_).first(sizeof(Hello)); }
  /// Where the next bytes belong; empty once there is a verdict.
  ByteSpan room() {
    if (elsewhere_) return {};
    return proven_ ? verdict_.rest() : challenge_.rest();
  }
  /// After so many bytes came there. False where the other end does not know the secret, or breaks
  /// the rules: nothing more is to be said to it.
  bool came(std::size_t bytes);
  /// What is to be sent after the last bytes; empty where nothing is.
  ConstByteSpan reply() const { return reply_; }
  /// Whether the other end knows the secret.
  bool proven() const { return proven_; }
  /// The other end's; kOtherRank where it proves to be another rank, which gets no proof.
  std::optional<Verdict> verdict() const;

 private:
  bool check_challenge();

  const Secret& secret_;
  Words words_{};
  Word<sizeof(Challenge)> challenge_;
  Word<sizeof(Verdict)> verdict_;
  Proof own_{};
  ConstByteSpan reply_;
  bool proven_ = false;
  bool elsewhere_ = false;  // it is another rank
};

/// The end that is called.
class Answerer {
 public:
  Answerer(const Secret& secret, std::uint32_t rank) : secret_(secret), rank_(rank) {}

  /// Where the next bytes belong; empty once the caller is known.
  ByteSpan room() { return hello_.whole() ? proof_.rest() : hello_.rest(); }
  /// After so many bytes came there. False where the caller does not know the secret, or speaks
  /// something else: drop it.
  bool came(std::size_t bytes);
  ConstByteSpan reply() const { return reply_; }
  /// Who calls, once that is proven.
  std::optional<Hello> caller() const;

 private:
  bool answer_hello();

  const Secret& secret_;
  const std::uint32_t rank_;
  Words words_{};
  Word<sizeof(Hello)> hello_;
  Word<sizeof(Proof)> proof_;
  Challenge challenge_{};
  ConstByteSpan reply_;
  bool proven_ = false;
};

/// The bytes of a verdict.
std::array<std::byte, sizeof(Verdict)> bytes_of(Verdict verdict);

}  // namespace tersor::tcp
