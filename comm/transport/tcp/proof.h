// What a connection proves before a byte of it is believed: that its other end knows the secret of
// the world. HMAC-SHA256 of libsodium, which links statically (0.2 MB; OpenSSL's brings 4.4 MB of
// providers); nothing else here knows it.
#pragma once

#include <tersor/span.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tersor::tcp {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kLeastSecretBytes = 16;

using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

/// The purpose of a keyed hash: a hash for one purpose never passes for a hash for another purpose.
enum class Role : std::uint8_t {
  kCaller = 1,
  kAnswerer,
  kCallerSends,    ///< key of the bytes that the caller sends
  kAnswererSends,  ///< key of the bytes that the answerer sends
  kCompletion,     ///< Secret::completed_by
};

/// What ranks of one world know, and nobody else. Forgotten in memory when it goes.
class Secret {
 public:
  /// Throws InvalidArgument as `check` does. Argon2id stretches every text except 64 hexadecimal
  /// digits, so that guessing a phrase is slow: about 0.1 s and 64 MiB per guess.
  explicit Secret(std::string_view text);
  ~Secret();
  Secret(const Secret& other) = default;
  Secret& operator=(const Secret&) = delete;

  /// Throws InvalidArgument if the text has fewer than kLeastSecretBytes bytes.
  static void check(std::string_view text);
  /// A secret that only the holders of both secrets know. An empty text leaves the secret as it is.
  Secret completed_by(std::string_view text) const;

  /// Of these words, said in this role.
  Proof prove(Role role, ConstByteSpan words) const;
  /// Whether that is the proof of these words; takes as long for a wrong one.
  bool accepts(const Proof& proof, Role role, ConstByteSpan words) const;

 private:
  Proof key_;
};

/// Random bytes that nobody can foresee.
Nonce new_nonce();
/// A secret of 32 random bytes, in hexadecimal digits.
std::string new_secret();
/// Overwrites a text that holds a secret.
void wipe(std::string& text);

}  // namespace tersor::tcp
