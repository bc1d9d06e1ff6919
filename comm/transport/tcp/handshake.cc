#include "comm/transport/tcp/handshake.h"

#include <cstring>
#include <utility>

namespace tersor::tcp {
namespace {

constexpr Answer kNoAnswer{};

}  // namespace

bool End::came(std::size_t bytes) {
  reply_ = {};
  filled_ += bytes;
  return filled_ != awaited_ || take();
}

template <typename Message>
Message End::message(std::size_t next_bytes) {
  Message whole;
  std::memcpy(&whole, message_.data(), sizeof whole);
  filled_ = 0;
  awaited_ = next_bytes;
  return whole;
}

SessionKeys End::keys_by(Role sends, Role receives) const {
  return {.send = secret_.prove(sends, bytes_of(transcript_)),
          .receive = secret_.prove(receives, bytes_of(transcript_))};
}

Caller::Caller(const Secret& secret, const Hello& hello) : End(secret, sizeof(Challenge)) {
  transcript_.hello = hello;
  transcript_.hello.nonce = new_nonce();
}

ConstByteSpan Caller::opening() const { return bytes_of(transcript_.hello); }

bool Caller::take() {
  if (own_) return check_answer();
  transcript_.challenge = message<Challenge>(sizeof(Answer));
  reply_ = own_.emplace(secret_.prove(Role::kCaller, bytes_of(transcript_)));
  return true;
}

bool Caller::check_answer() {
  const auto answer = message<Answer>(0);
  transcript_.verdict = answer.verdict;
  const bool known = answer.verdict >= 1 && answer.verdict <= kLastVerdict;
  if (!known || !secret_.accepts(answer.proof, Role::kAnswerer, bytes_of(transcript_)))
    return false;
  const bool called = transcript_.challenge.rank == transcript_.hello.to;
  verdict_ = called ? static_cast<Verdict>(answer.verdict) : Verdict::kOtherRank;
  return true;
}

// A rank never connects to itself: another process sent the hello back.
bool Answerer::take() {
  if (std::exchange(greeted_, true)) return check_proof();
  transcript_.hello = message<Hello>(sizeof(Proof));
  if (transcript_.hello.magic != Hello::kMagic || transcript_.hello.from == rank_) return false;
  transcript_.challenge = {.nonce = new_nonce(), .rank = rank_};
  reply_ = bytes_of(transcript_.challenge);
  return true;
}

// A caller with another secret learns the refusal at once and does not call again.
bool Answerer::check_proof() {
  proven_ = secret_.accepts(message<Proof>(0), Role::kCaller, bytes_of(transcript_));
  if (!proven_) reply_ = bytes_of(kNoAnswer);
  return proven_;
}

std::optional<Hello> Answerer::caller() const {
  if (!proven_) return std::nullopt;
  return transcript_.hello;
}

Answer Answerer::answer(Verdict verdict) {
  transcript_.verdict = static_cast<std::uint64_t>(verdict);
  return {.verdict = transcript_.verdict,
          .proof = secret_.prove(Role::kAnswerer, bytes_of(transcript_))};
}

}  // namespace tersor::tcp
