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
  return {.send = secret_.prove(sends, bytes_of(words_)),
          .receive = secret_.prove(receives, bytes_of(words_))};
}

Caller::Caller(const Secret& secret, const Hello& hello) : End(secret, sizeof(Challenge)) {
  words_.hello = hello;
  words_.hello.nonce = new_nonce();
}

ConstByteSpan Caller::opening() const { return bytes_of(words_.hello); }

bool Caller::take() {
  if (own_) return check_answer();
  words_.challenge = message<Challenge>(sizeof(Answer));
  reply_ = own_.emplace(secret_.prove(Role::kCaller, bytes_of(words_)));
  return true;
}

bool Caller::check_answer() {
  const auto answer = message<Answer>(0);
  words_.verdict = answer.verdict;
  const bool known = answer.verdict >= 1 && answer.verdict <= kLastVerdict;
  if (!known || !secret_.accepts(answer.proof, Role::kAnswerer, bytes_of(words_))) return false;
  const bool called = words_.challenge.rank == words_.hello.to;
  verdict_ = called ? static_cast<Verdict>(answer.verdict) : Verdict::kOtherRank;
  return true;
}

// A rank never connects to itself: another process sent the hello back.
bool Answerer::take() {
  if (std::exchange(greeted_, true)) return check_proof();
  words_.hello = message<Hello>(sizeof(Proof));
  if (words_.hello.magic != Hello::kMagic || words_.hello.from == rank_) return false;
  words_.challenge = {.nonce = new_nonce(), .rank = rank_};
  reply_ = bytes_of(words_.challenge);
  return true;
}

// A caller with another secret learns the refusal at once and does not call again.
bool Answerer::check_proof() {
  proven_ = secret_.accepts(message<Proof>(0), Role::kCaller, bytes_of(words_));
  if (!proven_) reply_ = bytes_of(kNoAnswer);
  return proven_;
}

std::optional<Hello> Answerer::caller() const {
  if (!proven_) return std::nullopt;
  return words_.hello;
}

Answer Answerer::answer(Verdict verdict) {
  words_.verdict = static_cast<std::uint64_t>(verdict);
  return {.verdict = words_.verdict, .proof = secret_.prove(Role::kAnswerer, bytes_of(words_))};
}

}  // namespace tersor::tcp
