// Both ends of the handshake, without a socket: who knows the secret is believed, nobody else is,
// and nothing that was said once can be said again.
#include <gtest/gtest.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/transport/tcp/handshake.h"

namespace tersor::tcp {
namespace {

using Bytes = std::vector<std::byte>;

const std::string kSharedSecret = "correct horse battery staple";

Bytes copy_of(ConstByteSpan bytes) { return {bytes.begin(), bytes.end()}; }

/// Feeds bytes to one end, so many at a time; false as soon as it wants no more.
template <typename End>
bool feed(End& end, ConstByteSpan bytes, std::size_t step = 1000) {
  while (!bytes.empty() && !end.room().empty()) {
    const std::size_t count = std::min({step, bytes.size(), end.room().size()});
    std::copy_n(bytes.begin(), count, end.room().begin());
    if (!end.came(count)) return false;
    bytes = bytes.subspan(count);
  }
  return true;
}

/// What was said on one connection.
struct Talk {
  Bytes hello, challenge, proof;
  std::optional<Hello> caller;     ///< whom the answerer believes to speak with
  std::optional<Verdict> verdict;  ///< that the caller was told
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
  if (!feed(answerer, said.proof, step)) return said;
  said.caller = answerer.caller();
  feed(caller, bytes_of(Verdict::kWelcome), step);
  said.verdict = caller.verdict();
  return said;
}

TEST(TcpHandshake, TwoThatKnowTheSecretBelieveEachOther) {
  const Secret secret(kSharedSecret);
  for (const std::size_t step : {1u, 7u, 1000u}) {
    const Talk said =
        talk(secret, secret, {.from = 3, .to = 5, .ranks = 8, .lanes = 2, .lane = 1}, step);
    ASSERT_TRUE(said.caller.has_value());
    EXPECT_EQ(said.caller->from, 3u);
    EXPECT_EQ(said.caller->to, 5u);
    EXPECT_EQ(said.caller->lane, 1u);
    EXPECT_EQ(said.verdict, Verdict::kWelcome);
  }
}

TEST(TcpHandshake, AnotherSecretIsBelievedByNeither) {
  const Secret secret(kSharedSecret), old("correct horse battery stable");
  const Talk said = talk(old, secret, {.from = 1, .to = 0});
  EXPECT_FALSE(said.caller.has_value());
  EXPECT_TRUE(said.proof.empty()) << "who was not proven gets a proof of ours";
}

TEST(TcpHandshake, NothingIsSaidTwice) {
  const Secret secret(kSharedSecret);
  const Talk first = talk(secret, secret, {.from = 1}), second = talk(secret, secret, {.from = 1});
  EXPECT_NE(first.hello, second.hello);
  EXPECT_NE(first.challenge, second.challenge);
  EXPECT_NE(first.proof, second.proof);
}

// Somebody heard a whole connection and says the caller's words again.
TEST(TcpHandshake, ARepeatedCallIsNotBelieved) {
  const Secret secret(kSharedSecret);
  const Talk heard = talk(secret, secret, {.from = 1});
  Answerer answerer(secret, 0);
  EXPECT_TRUE(feed(answerer, heard.hello));
  EXPECT_FALSE(feed(answerer, heard.proof));
  EXPECT_FALSE(answerer.caller().has_value());
}

// An answerer's own proof, sent back to it, is no caller's.
TEST(TcpHandshake, AMirrorIsNotBelieved) {
  const Secret secret(kSharedSecret);
  Caller caller(secret, {.from = 1});
  Answerer answerer(secret, 0);
  EXPECT_TRUE(feed(answerer, caller.opening()));
  const Bytes challenge = copy_of(answerer.reply());
  EXPECT_FALSE(feed(answerer, ConstByteSpan(challenge).last(kProofBytes)));
  EXPECT_FALSE(answerer.caller().has_value());
}

// Somebody at a rank's address lets other ranks answer in its place.
TEST(TcpHandshake, NoRankAnswersForAnother) {
  const Secret secret(kSharedSecret);
  Caller caller(secret, {.from = 0, .to = 1, .ranks = 3, .lanes = 1});
  Answerer caller_itself(secret, 0), other(secret, 2);
  EXPECT_FALSE(feed(caller_itself, caller.opening())) << "vouches for rank 1";
  EXPECT_TRUE(caller_itself.reply().empty());
  EXPECT_TRUE(feed(other, caller.opening()));
  EXPECT_TRUE(feed(caller, other.reply()));
  EXPECT_EQ(caller.verdict(), Verdict::kOtherRank);
  EXPECT_TRUE(caller.room().empty() && caller.reply().empty()) << "rank 2 gets a proof";
}

// Nor by saying that it is the one that was called.
TEST(TcpHandshake, TheAnswerersRankIsProven) {
  const Secret secret(kSharedSecret);
  Caller caller(secret, {.from = 0, .to = 1, .ranks = 3, .lanes = 1});
  Answerer other(secret, 2);
  EXPECT_TRUE(feed(other, caller.opening()));
  Bytes challenge = copy_of(other.reply());
  challenge[offsetof(Challenge, rank)] = std::byte{1};
  EXPECT_FALSE(feed(caller, challenge));
  EXPECT_FALSE(caller.proven());
}

// Who it says to be is what it proves.
TEST(TcpHandshake, AnyChangedBitIsNoticed) {
  const Secret secret(kSharedSecret);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Caller caller(secret, {.from = 1, .to = 2, .ranks = 4, .lanes = 1});
    Answerer answerer(secret, 2);
    std::vector<Bytes> words = {copy_of(caller.opening())};
    const auto damage = [&](std::size_t word) {
      if (round % 3 != static_cast<int>(word)) return;
      Bytes& bytes = words[word];
      bytes[random() % bytes.size()] ^= std::byte(1 << (random() % 8));
    };
    damage(0);
    bool believed = feed(answerer, words[0]);
    words.push_back(copy_of(answerer.reply()));
    if (believed) damage(1);
    believed = believed && feed(caller, words[1]);
    words.push_back(copy_of(caller.reply()));
    if (believed) damage(2);
    believed = believed && feed(answerer, words[2]);
    EXPECT_FALSE(believed) << "round " << round;
    EXPECT_FALSE(answerer.caller().has_value());
  }
}

TEST(TcpHandshake, OnlyVerdictsAreVerdicts) {
  const Secret secret(kSharedSecret);
  for (const std::uint64_t number : {std::uint64_t{0}, kLastVerdict + 1, std::uint64_t{1} << 32}) {
    Caller caller(secret, {.from = 1});
    Answerer answerer(secret, 0);
    EXPECT_TRUE(feed(answerer, caller.opening()));
    EXPECT_TRUE(feed(caller, answerer.reply()));
    EXPECT_FALSE(feed(caller, bytes_of(static_cast<Verdict>(number))));
    EXPECT_FALSE(caller.verdict().has_value());
  }
}

TEST(TcpHandshake, AShortSecretIsRefused) {
  EXPECT_THROW(Secret("fifteen letters"), InvalidArgument);
  EXPECT_NO_THROW(Secret("sixteen letters!"));
  EXPECT_NE(new_secret(), new_secret());
  EXPECT_EQ(new_secret().size(), 64u);
}

}  // namespace
}  // namespace tersor::tcp
