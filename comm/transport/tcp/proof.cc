#include "comm/transport/tcp/proof.h"

#include <sodium.h>
#include <tersor/error.h>

namespace tersor::tcp {
namespace {

static_assert(kProofBytes == crypto_auth_hmacsha256_BYTES);
static_assert(kProofBytes == crypto_hash_sha256_BYTES);

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

void prepare() {
  if (sodium_init() < 0) throw Error("libsodium finds no source of random bytes");
}

}  // namespace

// A key of one length, whatever the secret's.
Secret::Secret(std::string_view bytes) {
  if (bytes.size() < kLeastSecretBytes)
    throw InvalidArgument("a secret of " + std::to_string(bytes.size()) + " bytes: give at least " +
                          std::to_string(kLeastSecretBytes) + ", drawn at random");
  prepare();
  crypto_hash_sha256(raw(key_.data()), reinterpret_cast<const unsigned char*>(bytes.data()),
                     bytes.size());
}

Secret::~Secret() { sodium_memzero(key_.data(), key_.size()); }

Proof Secret::prove(Role role, ConstByteSpan words) const {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(key_.data()), key_.size());
  const auto label = static_cast<unsigned char>(role);
  crypto_auth_hmacsha256_update(&state, &label, 1);
  crypto_auth_hmacsha256_update(&state, raw(words.data()), words.size());
  Proof proof;
  crypto_auth_hmacsha256_final(&state, raw(proof.data()));
  return proof;
}

bool Secret::accepts(const Proof& proof, Role role, ConstByteSpan words) const {
  const Proof expected = prove(role, words);
  return sodium_memcmp(proof.data(), expected.data(), proof.size()) == 0;
}

Nonce new_nonce() {
  prepare();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string new_secret() {
  const Nonce random = new_nonce();
  std::string digits(2 * random.size() + 1, '\0');
  sodium_bin2hex(digits.data(), digits.size(), raw(random.data()), random.size());
  digits.pop_back();
  return digits;
}

}  // namespace tersor::tcp
