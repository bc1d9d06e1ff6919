#include "comm/transport/tcp/handshake.h"

#include <cstring>
#include <utility>

namespace tersor::tcp {
namespace {

constexpr Answer kNoAnswer{};

}  // namespace

bool Handshake::on_received(std::size_t bytes) {
  reply_ = {};
  filled_ += bytes;
  return filled_ != expected_ || on_message();
}

template <typename Message>
Message Handshake::read(std::size_t next_bytes) {
  Message whole;
  std::memcpy(&whole, message_.data(), sizeof whole);
  filled_ = 0;
  expected_ = next_bytes;
  return whole;
}

SessionKeys Handshake::derive_keys(MacPurpose send, MacPurpose receive) const {
  return {.send = secret_.compute_mac(send, bytes_of(transcript_)),
          .receive = secret_.compute_mac(receive, bytes_of(transcript_))};
}

ClientHandshake::ClientHandshake(const Secret& secret, const Hello& hello)
    : Handshake(secret, sizeof(Challenge)) {
  transcript_.hello = hello;
  transcript_.hello.nonce = new_nonce();
}

ConstByteSpan ClientHandshake::first_message() const { return bytes_of(transcript_.hello); }

bool ClientHandshake::on_message() {
  if (client_mac_) return check_answer();
  transcript_.challenge = read<Challenge>(sizeof(Answer));
  reply_ = client_mac_.emplace(secret_.compute_mac(MacPurpose::kClientMac, bytes_of(transcript_)));
  return true;
}

bool ClientHandshake::check_answer() {
  const auto answer = read<Answer>(0);
  transcript_.verdict = answer.verdict;
  const bool known = answer.verdict >= 1 && answer.verdict <= kLastVerdict;
  if (!known || !secret_.verify(answer.mac, MacPurpose::kServerMac, bytes_of(transcript_)))
    return false;
  const bool is_called_rank = transcript_.challenge.rank == transcript_.hello.to;
  verdict_ = is_called_rank ? static_cast<Verdict>(answer.verdict) : Verdict::kWrongRank;
  return true;
}

// A rank never connects to itself: another process sent the hello back.
bool ServerHandshake::on_message() {
  if (std::exchange(has_hello_, true)) return check_client_mac();
  transcript_.hello = read<Hello>(sizeof(Digest));
  if (transcript_.hello.magic != Hello::kMagic || transcript_.hello.from == rank_) return false;
  transcript_.challenge = {.nonce = new_nonce(), .rank = rank_};
  reply_ = bytes_of(transcript_.challenge);
  return true;
}

// A client with another secret gets the rejection at once and does not connect again.
bool ServerHandshake::check_client_mac() {
  authenticated_ = secret_.verify(read<Digest>(0), MacPurpose::kClientMac, bytes_of(transcript_));
  if (!authenticated_) reply_ = bytes_of(kNoAnswer);
  return authenticated_;
}

std::optional<Hello> ServerHandshake::client() const {
  if (!authenticated_) return std::nullopt;
  return transcript_.hello;
}

Answer ServerHandshake::answer(Verdict verdict) {
  transcript_.verdict = static_cast<std::uint64_t>(verdict);
  return {.verdict = transcript_.verdict,
          .mac = secret_.compute_mac(MacPurpose::kServerMac, bytes_of(transcript_))};
}

}  // namespace tersor::tcp
