#include "comm/transport/tcp/handshake.h"

#include <bit>
#include <cstring>
#include <span>

namespace tersor::tcp {
namespace {

template <typename T>
T read_as(ConstByteSpan bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <typename T>
ConstByteSpan bytes_at(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

void append(Words& words, const Challenge& challenge) {
  std::memcpy(words.data() + sizeof(Hello), &challenge, words.size() - sizeof(Hello));
}

}  // namespace

Caller::Caller(const Secret& secret, Hello hello) : secret_(secret) {
  hello.nonce = new_nonce();
  std::memcpy(words_.data(), &hello, sizeof hello);
}

bool Caller::came(std::size_t bytes) {
  reply_ = {};
  if (proven_) {
    verdict_.came(bytes);
    return !verdict_.whole() || verdict().has_value();
  }
  challenge_.came(bytes);
  return !challenge_.whole() || check_challenge();
}

bool Caller::check_challenge() {
  const auto challenge = read_as<Challenge>(challenge_.bytes());
  append(words_, challenge);
  proven_ = secret_.accepts(challenge.proof, Role::kAnswerer, words_);
  if (!proven_) return false;
  elsewhere_ = challenge.rank != read_as<Hello>(words_).to;
  if (elsewhere_) return true;
  own_ = secret_.prove(Role::kCaller, words_);
  reply_ = own_;
  return true;
}

std::optional<Verdict> Caller::verdict() const {
  if (elsewhere_) return Verdict::kOtherRank;
  if (!verdict_.whole()) return std::nullopt;
  const auto number = read_as<std::uint64_t>(verdict_.bytes());
  if (number < 1 || number > kLastVerdict) return std::nullopt;
  return static_cast<Verdict>(number);
}

bool Answerer::came(std::size_t bytes) {
  reply_ = {};
  if (!hello_.whole()) {
    hello_.came(bytes);
    return !hello_.whole() || answer_hello();
  }
  proof_.came(bytes);
  if (!proof_.whole()) return true;
  proven_ = secret_.accepts(read_as<Proof>(proof_.bytes()), Role::kCaller, words_);
  return proven_;
}

// Nobody calls itself: its own hello comes back from somebody else.
bool Answerer::answer_hello() {
  const auto hello = read_as<Hello>(hello_.bytes());
  if (hello.magic != Hello::kMagic || hello.from == rank_) return false;
  std::memcpy(words_.data(), &hello, sizeof hello);
  challenge_.nonce = new_nonce();
  challenge_.rank = rank_;
  append(words_, challenge_);
  challenge_.proof = secret_.prove(Role::kAnswerer, words_);
  reply_ = bytes_at(challenge_);
  return true;
}

std::optional<Hello> Answerer::caller() const {
  if (!proven_) return std::nullopt;
  return read_as<Hello>(hello_.bytes());
}

std::array<std::byte, sizeof(Verdict)> bytes_of(Verdict verdict) {
  return std::bit_cast<std::array<std::byte, sizeof(Verdict)>>(verdict);
}

}  // namespace tersor::tcp
