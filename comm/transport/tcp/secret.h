// The authentication of a connection: both ends know the world's secret. HMAC-SHA256 of
// libsodium, linked statically (0.2 MB, compared with 4.4 MB of providers for OpenSSL). Only
// secret.cc and records.cc use libsodium.
#pragma once

#include <tersor/span.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tersor::tcp {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kDigestBytes = 32;
inline constexpr std::size_t kMinSecretBytes = 16;

using Nonce = std::array<std::byte, kNonceBytes>;
using Digest = std::array<std::byte, kDigestBytes>;

/// The purpose of a keyed hash: a hash for one purpose never passes for a hash for another purpose.
enum class MacPurpose : std::uint8_t {
  kClientMac = 1,
  kServerMac,
  kClientKey,    ///< key of the bytes sent by the client
  kServerKey,    ///< key of the bytes sent by the server
  kCombination,  ///< Secret::combined_with
};

/// The secret shared by the ranks of a world. Overwritten in memory on destruction.
class Secret {
 public:
  /// Throws InvalidArgumentError as `check` does. Argon2id stretches every text except 64
  /// hexadecimal digits, to make guessing a phrase slow: about 0.1 s and 64 MiB per guess.
  explicit Secret(std::string_view text);
  ~Secret();
  Secret(const Secret& other) = default;
  Secret& operator=(const Secret&) = delete;

  /// Throws InvalidArgumentError if the text has fewer than kMinSecretBytes bytes.
  static void check(std::string_view text);
  /// Returns a secret known only to the holders of both secrets. An empty text leaves the secret
  /// unchanged.
  Secret combined_with(std::string_view text) const;

  /// The keyed hash of `transcript` for a purpose.
  Digest compute_mac(MacPurpose purpose, ConstByteSpan transcript) const;
  /// True if `mac` is the keyed hash of `transcript`. Takes equal time for wrong hashes.
  bool verify(const Digest& mac, MacPurpose purpose, ConstByteSpan transcript) const;

 private:
  Digest key_;
};

/// Cryptographically secure random bytes.
Nonce new_nonce();
/// A secret of 32 random bytes, in hexadecimal digits.
std::string new_secret();
/// Overwrites a text with a secret.
void wipe(std::string& text);

}  // namespace tersor::tcp
