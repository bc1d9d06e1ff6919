#include "comm/transport/tcp/handshake.h"

#include <cstring>

namespace tersor::tcp {
namespace {

constexpr Answer kNoAnswer{};

template <typename T>
T read_as(ConstByteSpan bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

Caller::Caller(const Secret& secret, const Hello& hello) : secret_(secret) {
  words_.hello = hello;
  words_.hello.nonce = new_nonce();
}

ConstByteSpan Caller::opening() const { return bytes_of(words_.hello); }

bool Caller::came(std::size_t bytes) {
  reply_ = {};
  if (challenge_.whole()) {
    answer_.came(bytes);
    return !answer_.whole() || check_answer();
  }
  challenge_.came(bytes);
  if (challenge_.whole()) prove();
  return true;
}

void Caller::prove() {
  words_.challenge = read_as<Challenge>(challenge_.bytes());
  own_ = secret_.prove(Role::kCaller, bytes_of(words_));
  reply_ = own_;
}

bool Caller::check_answer() {
  const auto answer = read_as<Answer>(answer_.bytes());
  words_.verdict = answer.verdict;
  const bool known = answer.verdict >= 1 && answer.verdict <= kLastVerdict;
  if (!known || !secret_.accepts(answer.proof, Role::kAnswerer, bytes_of(words_))) return false;
  const bool called = words_.challenge.rank == words_.hello.to;
  verdict_ = called ? static_cast<Verdict>(answer.verdict) : Verdict::kOtherRank;
  return true;
}

SessionKeys Caller::keys() const {
  return {.send = secret_.prove(Role::kCallerSends, bytes_of(words_)),
          .receive = secret_.prove(Role::kAnswererSends, bytes_of(words_))};
}

bool Answerer::came(std::size_t bytes) {
  reply_ = {};
  if (hello_.whole()) {
    proof_.came(bytes);
    return !proof_.whole() || check_proof();
  }
  hello_.came(bytes);
  return !hello_.whole() || answer_hello();
}

// A rank never calls itself: another process sent the hello back.
bool Answerer::answer_hello() {
  words_.hello = read_as<Hello>(hello_.bytes());
  if (words_.hello.magic != Hello::kMagic || words_.hello.from == rank_) return false;
  words_.challenge = {.nonce = new_nonce(), .rank = rank_};
  reply_ = bytes_of(words_.challenge);
  return true;
}

// A caller with another secret learns so at once, and does not call again.
bool Answerer::check_proof() {
  proven_ = secret_.accepts(read_as<Proof>(proof_.bytes()), Role::kCaller, bytes_of(words_));
  if (!proven_) reply_ = bytes_of(kNoAnswer);
  return proven_;
}

std::optional<Hello> Answerer::caller() const {
  if (!proven_) return std::nullopt;
  return words_.hello;
}

Answer Answerer::answer(Verdict verdict) const {
  Words words = words_;
  words.verdict = static_cast<std::uint64_t>(verdict);
  return {.verdict = words.verdict, .proof = secret_.prove(Role::kAnswerer, bytes_of(words))};
}

SessionKeys Answerer::keys() const {
  Words words = words_;
  words.verdict = static_cast<std::uint64_t>(Verdict::kWelcome);
  return {.send = secret_.prove(Role::kAnswererSends, bytes_of(words)),
          .receive = secret_.prove(Role::kCallerSends, bytes_of(words))};
}

}  // namespace tersor::tcp
