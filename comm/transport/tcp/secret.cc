#include "comm/transport/tcp/secret.h"

#include <sodium.h>
#include <tersor/error.h>

namespace tersor::tcp {
namespace {

static_assert(kDigestBytes == crypto_auth_hmacsha256_BYTES);
static_assert(kDigestBytes == crypto_hash_sha256_BYTES);

// Length of a secret from `new_secret` or `openssl rand -hex 32`.
constexpr std::size_t kRandomDigits = 2 * kNonceBytes;
constexpr char kSalt[] = "tersor tcp world";
static_assert(sizeof kSalt == crypto_pwhash_SALTBYTES + 1);

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

void prepare() {
  if (sodium_init() < 0) throw Error("libsodium finds no source of random bytes");
}

bool is_random_hex(std::string_view text) {
  return text.size() == kRandomDigits &&
         text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

void stretch(std::string_view text, Digest& key) {
  if (crypto_pwhash(raw(key.data()), key.size(), text.data(), text.size(),
                    reinterpret_cast<const unsigned char*>(kSalt),
                    crypto_pwhash_OPSLIMIT_INTERACTIVE, crypto_pwhash_MEMLIMIT_INTERACTIVE,
                    crypto_pwhash_ALG_ARGON2ID13) != 0)
    throw OutOfMemoryError(
        "no 64 MiB of memory to stretch a secret that is a phrase: use the output of `openssl rand "
        "-hex 32`, which needs no memory");
}

}  // namespace

void Secret::check(std::string_view text) {
  if (text.size() < kMinSecretBytes)
    throw InvalidArgumentError(
        "the secret has " + std::to_string(text.size()) + " bytes: give at least " +
        std::to_string(kMinSecretBytes) +
        ", the same on all ranks (TERSOR_SECRET in Python), e.g. the output of "
        "`openssl rand -hex 32`");
}

Secret::Secret(std::string_view text) {
  check(text);
  prepare();
  if (is_random_hex(text))
    crypto_hash_sha256(raw(key_.data()), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size());
  else
    stretch(text, key_);
}

Secret Secret::combined_with(std::string_view text) const {
  Secret combined = *this;
  if (!text.empty()) combined.key_ = Secret(text).compute_mac(MacPurpose::kCombination, key_);
  return combined;
}

Secret::~Secret() { sodium_memzero(key_.data(), key_.size()); }

Digest Secret::compute_mac(MacPurpose purpose, ConstByteSpan transcript) const {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(key_.data()), key_.size());
  const auto label = static_cast<unsigned char>(purpose);
  crypto_auth_hmacsha256_update(&state, &label, 1);
  crypto_auth_hmacsha256_update(&state, raw(transcript.data()), transcript.size());
  Digest mac;
  crypto_auth_hmacsha256_final(&state, raw(mac.data()));
  return mac;
}

bool Secret::verify(const Digest& mac, MacPurpose purpose, ConstByteSpan transcript) const {
  const Digest expected = compute_mac(purpose, transcript);
  return sodium_memcmp(mac.data(), expected.data(), mac.size()) == 0;
}

Nonce new_nonce() {
  prepare();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string new_secret() {
  const Nonce random = new_nonce();
  std::string digits(kRandomDigits, '\0');
  sodium_bin2hex(digits.data(), digits.size() + 1, raw(random.data()), random.size());
  return digits;
}

void wipe(std::string& text) { sodium_memzero(text.data(), text.size()); }

}  // namespace tersor::tcp
