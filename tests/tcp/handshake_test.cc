// Both ends of the handshake without a socket: only peers with the secret are authenticated, and
// replayed messages are refused.
#include <gtest/gtest.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/tcp/handshake.h"

namespace tersor::tcp {
namespace {

using Bytes = std::vector<std::byte>;

const std::string kSharedSecret =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const std::string kOtherSecret = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

Bytes copy_of(ConstByteSpan bytes) { return {bytes.begin(), bytes.end()}; }

Bytes pattern_of(std::size_t bytes) { return Bytes(bytes, std::byte{0x5a}); }

/// Feeds `step` bytes at a time to one end. Returns false after the end refuses more bytes.
template <typename End>
bool feed(End& end, ConstByteSpan bytes, std::size_t step = 1000) {
  while (!bytes.empty() && !end.space().empty()) {
    const std::size_t count = std::min({step, bytes.size(), end.space().size()});
    std::copy_n(bytes.begin(), count, end.space().begin());
    if (!end.came(count)) return false;
    bytes = bytes.subspan(count);
  }
  return true;
}

/// All messages of a connection, and the results at both ends.
struct Talk {
  Bytes hello, challenge, proof, answer;
  std::optional<Hello> caller;
  std::optional<Verdict> verdict;
  std::optional<SessionKeys> of_caller, of_answerer;
};

Talk talk(const Secret& of_caller, const Secret& of_answerer, const Hello& hello,
          std::size_t step = 1000) {
  Caller caller(of_caller, hello);
  Answerer answerer(of_answerer, hello.to);
  Talk said{.hello = copy_of(caller.opening())};
  if (!feed(answerer, said.hello, step)) return said;
  said.challenge = copy_of(answerer.reply());
  if (!feed(caller, said.challenge, step)) return said;
  said.proof = copy_of(caller.reply());
  const bool proven = feed(answerer, said.proof, step);
  said.caller = answerer.caller();
  said.answer =
      proven ? copy_of(bytes_of(answerer.answer(Verdict::kWelcome))) : copy_of(answerer.reply());
  if (!feed(caller, said.answer, step)) return said;
  said.verdict = caller.verdict();
  said.of_caller = caller.keys();
  said.of_answerer = answerer.keys();
  return said;
}

TEST(TcpHandshake, SharedSecretAuthenticatesBothEnds) {
  const Secret secret(kSharedSecret);
  for (const std::size_t step : {1u, 7u, 1000u}) {
    const Talk said = talk(
        secret, secret, {.from = 3, .to = 5, .ranks = 8, .connections = 2, .connection = 1}, step);
    ASSERT_TRUE(said.caller.has_value());
    EXPECT_EQ(said.caller->from, 3u);
    EXPECT_EQ(said.caller->to, 5u);
    EXPECT_EQ(said.caller->connection, 1u);
    EXPECT_EQ(said.verdict, Verdict::kWelcome);
  }
}

TEST(TcpHandshake, DifferentSecretsAuthenticateNeitherEnd) {
  const Secret secret(kSharedSecret), old(kOtherSecret);
  const Talk said = talk(old, secret, {.from = 1, .to = 0});
  EXPECT_FALSE(said.caller.has_value());
  EXPECT_FALSE(said.verdict.has_value());
}

// A MAC of chosen text would let a stranger test guesses of the secret.
TEST(TcpHandshake, AStrangerReceivesNoMac) {
  const Secret secret(kSharedSecret);
  Caller stranger(Secret(kOtherSecret), {.from = 1});
  Answerer answerer(secret, 0);
  EXPECT_TRUE(feed(answerer, stranger.opening()));
  EXPECT_EQ(answerer.reply().size(), sizeof(Nonce) + sizeof(Challenge::rank));
  EXPECT_FALSE(feed(answerer, pattern_of(kProofBytes)));
  EXPECT_EQ(copy_of(answerer.reply()), Bytes(sizeof(Answer), std::byte{0}));
}

TEST(TcpHandshake, BothEndsDeriveTheSameFreshKeys) {
  const Secret secret(kSharedSecret);
  const Talk first = talk(secret, secret, {.from = 1}), second = talk(secret, secret, {.from = 1});
  ASSERT_TRUE(first.of_caller && first.of_answerer && second.of_caller);
  EXPECT_EQ(first.of_caller->send, first.of_answerer->receive);
  EXPECT_EQ(first.of_caller->receive, first.of_answerer->send);
  EXPECT_NE(first.of_caller->send, first.of_caller->receive);
  EXPECT_NE(first.of_caller->send, second.of_caller->send);
}

TEST(TcpHandshake, RejectsRemovedProtection) {
  const Secret secret(kSharedSecret);
  Caller caller(secret, {.from = 1, .protection = 1});
  Answerer answerer(secret, 0);
  Bytes hello = copy_of(caller.opening());
  hello[offsetof(Hello, protection)] = std::byte{0};
  EXPECT_TRUE(feed(answerer, hello));
  EXPECT_TRUE(feed(caller, answerer.reply()));
  EXPECT_FALSE(feed(answerer, caller.reply()));
}

TEST(TcpHandshake, MessagesDifferInEachHandshake) {
  const Secret secret(kSharedSecret);
  const Talk first = talk(secret, secret, {.from = 1}), second = talk(secret, secret, {.from = 1});
  EXPECT_NE(first.hello, second.hello);
  EXPECT_NE(first.challenge, second.challenge);
  EXPECT_NE(first.proof, second.proof);
}

// An eavesdropper replays the caller's messages.
TEST(TcpHandshake, RejectsRepeatedCall) {
  const Secret secret(kSharedSecret);
  const Talk heard = talk(secret, secret, {.from = 1});
  Answerer answerer(secret, 0);
  EXPECT_TRUE(feed(answerer, heard.hello));
  EXPECT_FALSE(feed(answerer, heard.proof));
  EXPECT_FALSE(answerer.caller().has_value());
}

// The answerer's MAC, sent back to the answerer, is not a valid proof of a caller.
TEST(TcpHandshake, RejectsReflectedProof) {
  const Secret secret(kSharedSecret);
  Caller caller(secret, {.from = 1});
  Answerer answerer(secret, 0);
  EXPECT_TRUE(feed(answerer, caller.opening()));
  const Answer answer = answerer.answer(Verdict::kWelcome);
  EXPECT_FALSE(feed(answerer, answer.proof));
  EXPECT_FALSE(answerer.caller().has_value());
}

// An attacker at a rank's address lets other ranks answer.
TEST(TcpHandshake, NoRankAnswersForAnother) {
  const Secret secret(kSharedSecret);
  Caller caller(secret, {.from = 0, .to = 1, .ranks = 3, .connections = 1});
  Answerer caller_itself(secret, 0), other(secret, 2);
  EXPECT_FALSE(feed(caller_itself, caller.opening())) << "vouches for rank 1";
  EXPECT_TRUE(caller_itself.reply().empty());
  EXPECT_TRUE(feed(other, caller.opening()));
  EXPECT_TRUE(feed(caller, other.reply()));
  EXPECT_TRUE(feed(other, caller.reply()));
  EXPECT_TRUE(feed(caller, bytes_of(other.answer(Verdict::kWelcome))));
  EXPECT_EQ(caller.verdict(), Verdict::kOtherRank);
}

// A changed rank in the challenge changes the proof.
TEST(TcpHandshake, ProofCoversAnswererRank) {
  const Secret secret(kSharedSecret);
  Caller caller(secret, {.from = 0, .to = 1, .ranks = 3, .connections = 1});
  Answerer other(secret, 2);
  EXPECT_TRUE(feed(other, caller.opening()));
  Bytes challenge = copy_of(other.reply());
  challenge[offsetof(Challenge, rank)] = std::byte{1};
  EXPECT_TRUE(feed(caller, challenge));
  EXPECT_FALSE(feed(other, caller.reply()));
  EXPECT_FALSE(feed(caller, bytes_of(other.answer(Verdict::kWelcome))));
  EXPECT_FALSE(caller.proven());
}

TEST(TcpHandshake, DetectsAnyChangedBit) {
  const Secret secret(kSharedSecret);
  std::mt19937 random(7);
  for (std::size_t round = 0; round < 400; ++round) {
    Caller caller(secret, {.from = 1, .to = 2, .ranks = 4, .connections = 1});
    Answerer answerer(secret, 2);
    const auto sent = [&](std::size_t message, ConstByteSpan bytes) {
      Bytes changed = copy_of(bytes);
      if (round % 4 == message) changed[random() % changed.size()] ^= std::byte(1 << random() % 8);
      return changed;
    };
    const bool proven = feed(answerer, sent(0, caller.opening())) &&
                        feed(caller, sent(1, answerer.reply())) &&
                        feed(answerer, sent(2, caller.reply()));
    EXPECT_EQ(proven, round % 4 == 3) << "round " << round;
    EXPECT_EQ(answerer.caller().has_value(), proven);
    if (proven) feed(caller, sent(3, bytes_of(answerer.answer(Verdict::kWelcome))));
    EXPECT_FALSE(caller.proven()) << "round " << round;
  }
}

TEST(TcpHandshake, RejectsUnknownVerdicts) {
  const Secret secret(kSharedSecret);
  for (const std::uint64_t number : {std::uint64_t{0}, kLastVerdict + 1, std::uint64_t{1} << 32}) {
    Caller caller(secret, {.from = 1});
    Answerer answerer(secret, 0);
    EXPECT_TRUE(feed(answerer, caller.opening()));
    EXPECT_TRUE(feed(caller, answerer.reply()));
    EXPECT_FALSE(feed(caller, bytes_of(answerer.answer(static_cast<Verdict>(number)))));
    EXPECT_FALSE(caller.verdict().has_value());
  }
}

TEST(TcpHandshake, RejectsShortSecret) {
  EXPECT_THROW(Secret("fifteen letters"), InvalidArgumentError);
  EXPECT_NO_THROW(Secret("sixteen letters!"));
  EXPECT_THROW(Secret(kSharedSecret).completed_by("fifteen letters"), InvalidArgumentError);
  EXPECT_NE(new_secret(), new_secret());
  EXPECT_EQ(new_secret().size(), 64u);
}

std::string proof_by(const Secret& secret) {
  const std::string transcript = "words";
  std::string digits;
  for (const std::byte byte : secret.prove(Role::kCaller, std::as_bytes(std::span(transcript)))) {
    constexpr const char* kDigits = "0123456789abcdef";
    digits += {kDigits[std::to_integer<int>(byte >> 4)],
               kDigits[std::to_integer<int>(byte & std::byte{15})]};
  }
  return digits;
}

// Expected values: HMAC-SHA256 of "\x01words" by Python's hmac. The keys are SHA-256 of the 64
// digits, Argon2id of the phrase (2 passes, 64 MiB, salt "tersor tcp world"), and the HMAC of
// "\x05" and the first key by the second key.
TEST(TcpHandshake, ProofsMatchReferenceValues) {
  const std::string phrase = "correct horse battery staple";
  EXPECT_EQ(proof_by(Secret(kSharedSecret)),
            "f2987a113265496e7e71590854ad8ea1d42a3a2bb6230053f906f4c8f181b33f");
  EXPECT_EQ(proof_by(Secret(phrase)),
            "f8fa1a8d2205c45da7bcaf48bc472dd0193b3202d09c40f03cf99643fbfe6f26");
  EXPECT_EQ(proof_by(Secret(kSharedSecret).completed_by(phrase)),
            "3f3ab669323e84065f67929ea0c715fbe2798acc0148ccce600a6523a490fb7e");
  EXPECT_EQ(proof_by(Secret(kSharedSecret).completed_by("")), proof_by(Secret(kSharedSecret)));
}

}  // namespace
}  // namespace tersor::tcp
