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
  while (!bytes.empty() && !end.receive_buffer().empty()) {
    const std::size_t count = std::min({step, bytes.size(), end.receive_buffer().size()});
    std::copy_n(bytes.begin(), count, end.receive_buffer().begin());
    if (!end.on_received(count)) return false;
    bytes = bytes.subspan(count);
  }
  return true;
}

/// All messages of a connection, and the results at both ends.
struct Talk {
  Bytes hello, challenge, proof, answer;
  std::optional<Hello> client;
  std::optional<Verdict> verdict;
  std::optional<SessionKeys> of_client, of_server;
};

Talk talk(const Secret& of_client, const Secret& of_server, const Hello& hello,
          std::size_t step = 1000) {
  ClientHandshake client(of_client, hello);
  ServerHandshake server(of_server, hello.to);
  Talk said{.hello = copy_of(client.first_message())};
  if (!feed(server, said.hello, step)) return said;
  said.challenge = copy_of(server.reply());
  if (!feed(client, said.challenge, step)) return said;
  said.proof = copy_of(client.reply());
  const bool authenticated = feed(server, said.proof, step);
  said.client = server.client();
  said.answer = authenticated ? copy_of(bytes_of(server.answer(Verdict::kAccepted)))
                              : copy_of(server.reply());
  if (!feed(client, said.answer, step)) return said;
  said.verdict = client.verdict();
  said.of_client = client.keys();
  said.of_server = server.keys();
  return said;
}

TEST(TcpHandshake, SharedSecretAuthenticatesBothEnds) {
  const Secret secret(kSharedSecret);
  for (const std::size_t step : {1u, 7u, 1000u}) {
    const Talk said = talk(
        secret, secret, {.from = 3, .to = 5, .ranks = 8, .connections = 2, .connection = 1}, step);
    ASSERT_TRUE(said.client.has_value());
    EXPECT_EQ(said.client->from, 3u);
    EXPECT_EQ(said.client->to, 5u);
    EXPECT_EQ(said.client->connection, 1u);
    EXPECT_EQ(said.verdict, Verdict::kAccepted);
  }
}

TEST(TcpHandshake, DifferentSecretsAuthenticateNeitherEnd) {
  const Secret secret(kSharedSecret), old(kOtherSecret);
  const Talk said = talk(old, secret, {.from = 1, .to = 0});
  EXPECT_FALSE(said.client.has_value());
  EXPECT_FALSE(said.verdict.has_value());
}

// A MAC of chosen text would let a stranger test guesses of the secret.
TEST(TcpHandshake, AStrangerReceivesNoMac) {
  const Secret secret(kSharedSecret);
  ClientHandshake stranger(Secret(kOtherSecret), {.from = 1});
  ServerHandshake server(secret, 0);
  EXPECT_TRUE(feed(server, stranger.first_message()));
  EXPECT_EQ(server.reply().size(), sizeof(Nonce) + sizeof(Challenge::rank));
  EXPECT_FALSE(feed(server, pattern_of(kDigestBytes)));
  EXPECT_EQ(copy_of(server.reply()), Bytes(sizeof(Answer), std::byte{0}));
}

TEST(TcpHandshake, BothEndsDeriveTheSameFreshKeys) {
  const Secret secret(kSharedSecret);
  const Talk first = talk(secret, secret, {.from = 1}), second = talk(secret, secret, {.from = 1});
  ASSERT_TRUE(first.of_client && first.of_server && second.of_client);
  EXPECT_EQ(first.of_client->send, first.of_server->receive);
  EXPECT_EQ(first.of_client->receive, first.of_server->send);
  EXPECT_NE(first.of_client->send, first.of_client->receive);
  EXPECT_NE(first.of_client->send, second.of_client->send);
}

TEST(TcpHandshake, RejectsRemovedProtection) {
  const Secret secret(kSharedSecret);
  ClientHandshake client(secret, {.from = 1, .protection = 1});
  ServerHandshake server(secret, 0);
  Bytes hello = copy_of(client.first_message());
  hello[offsetof(Hello, protection)] = std::byte{0};
  EXPECT_TRUE(feed(server, hello));
  EXPECT_TRUE(feed(client, server.reply()));
  EXPECT_FALSE(feed(server, client.reply()));
}

TEST(TcpHandshake, MessagesDifferInEachHandshake) {
  const Secret secret(kSharedSecret);
  const Talk first = talk(secret, secret, {.from = 1}), second = talk(secret, secret, {.from = 1});
  EXPECT_NE(first.hello, second.hello);
  EXPECT_NE(first.challenge, second.challenge);
  EXPECT_NE(first.proof, second.proof);
}

// An eavesdropper replays the client's messages.
TEST(TcpHandshake, RejectsRepeatedCall) {
  const Secret secret(kSharedSecret);
  const Talk heard = talk(secret, secret, {.from = 1});
  ServerHandshake server(secret, 0);
  EXPECT_TRUE(feed(server, heard.hello));
  EXPECT_FALSE(feed(server, heard.proof));
  EXPECT_FALSE(server.client().has_value());
}

// The server's MAC, sent back to the server, is not a valid MAC of a client.
TEST(TcpHandshake, RejectsReflectedProof) {
  const Secret secret(kSharedSecret);
  ClientHandshake client(secret, {.from = 1});
  ServerHandshake server(secret, 0);
  EXPECT_TRUE(feed(server, client.first_message()));
  const Answer answer = server.answer(Verdict::kAccepted);
  EXPECT_FALSE(feed(server, answer.mac));
  EXPECT_FALSE(server.client().has_value());
}

// An attacker at a rank's address lets other ranks answer.
TEST(TcpHandshake, NoRankAnswersForAnother) {
  const Secret secret(kSharedSecret);
  ClientHandshake client(secret, {.from = 0, .to = 1, .ranks = 3, .connections = 1});
  ServerHandshake client_itself(secret, 0), other(secret, 2);
  EXPECT_FALSE(feed(client_itself, client.first_message())) << "vouches for rank 1";
  EXPECT_TRUE(client_itself.reply().empty());
  EXPECT_TRUE(feed(other, client.first_message()));
  EXPECT_TRUE(feed(client, other.reply()));
  EXPECT_TRUE(feed(other, client.reply()));
  EXPECT_TRUE(feed(client, bytes_of(other.answer(Verdict::kAccepted))));
  EXPECT_EQ(client.verdict(), Verdict::kWrongRank);
}

// A changed rank in the challenge changes the proof.
TEST(TcpHandshake, ProofCoversAnswererRank) {
  const Secret secret(kSharedSecret);
  ClientHandshake client(secret, {.from = 0, .to = 1, .ranks = 3, .connections = 1});
  ServerHandshake other(secret, 2);
  EXPECT_TRUE(feed(other, client.first_message()));
  Bytes challenge = copy_of(other.reply());
  challenge[offsetof(Challenge, rank)] = std::byte{1};
  EXPECT_TRUE(feed(client, challenge));
  EXPECT_FALSE(feed(other, client.reply()));
  EXPECT_FALSE(feed(client, bytes_of(other.answer(Verdict::kAccepted))));
  EXPECT_FALSE(client.authenticated());
}

TEST(TcpHandshake, DetectsAnyChangedBit) {
  const Secret secret(kSharedSecret);
  std::mt19937 random(7);
  for (std::size_t round = 0; round < 400; ++round) {
    ClientHandshake client(secret, {.from = 1, .to = 2, .ranks = 4, .connections = 1});
    ServerHandshake server(secret, 2);
    const auto sent = [&](std::size_t message, ConstByteSpan bytes) {
      Bytes changed = copy_of(bytes);
      if (round % 4 == message) changed[random() % changed.size()] ^= std::byte(1 << random() % 8);
      return changed;
    };
    const bool authenticated = feed(server, sent(0, client.first_message())) &&
                               feed(client, sent(1, server.reply())) &&
                               feed(server, sent(2, client.reply()));
    EXPECT_EQ(authenticated, round % 4 == 3) << "round " << round;
    EXPECT_EQ(server.client().has_value(), authenticated);
    if (authenticated) feed(client, sent(3, bytes_of(server.answer(Verdict::kAccepted))));
    EXPECT_FALSE(client.authenticated()) << "round " << round;
  }
}

TEST(TcpHandshake, RejectsUnknownVerdicts) {
  const Secret secret(kSharedSecret);
  for (const std::uint64_t number : {std::uint64_t{0}, kLastVerdict + 1, std::uint64_t{1} << 32}) {
    ClientHandshake client(secret, {.from = 1});
    ServerHandshake server(secret, 0);
    EXPECT_TRUE(feed(server, client.first_message()));
    EXPECT_TRUE(feed(client, server.reply()));
    EXPECT_FALSE(feed(client, bytes_of(server.answer(static_cast<Verdict>(number)))));
    EXPECT_FALSE(client.verdict().has_value());
  }
}

TEST(TcpHandshake, RejectsShortSecret) {
  EXPECT_THROW(Secret("fifteen letters"), InvalidArgumentError);
  EXPECT_NO_THROW(Secret("sixteen letters!"));
  EXPECT_THROW(Secret(kSharedSecret).combined_with("fifteen letters"), InvalidArgumentError);
  EXPECT_NE(new_secret(), new_secret());
  EXPECT_EQ(new_secret().size(), 64u);
}

std::string proof_by(const Secret& secret) {
  const std::string transcript = "words";
  std::string digits;
  for (const std::byte byte :
       secret.compute_mac(MacPurpose::kClientMac, std::as_bytes(std::span(transcript)))) {
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
  EXPECT_EQ(proof_by(Secret(kSharedSecret).combined_with(phrase)),
            "3f3ab669323e84065f67929ea0c715fbe2798acc0148ccce600a6523a490fb7e");
  EXPECT_EQ(proof_by(Secret(kSharedSecret).combined_with("")), proof_by(Secret(kSharedSecret)));
}

}  // namespace
}  // namespace tersor::tcp
