#include "comm/transport/tcp/records.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tersor::tcp {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
constexpr std::size_t kMacBytes = crypto_aead_chacha20poly1305_ietf_ABYTES;
constexpr std::size_t kOverhead = kLengthBytes + kMacBytes;
static_assert(kProofBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES);

unsigned char* bytes_in(ByteSpan span) { return reinterpret_cast<unsigned char*>(span.data()); }

/// One record, as the cipher sees it.
struct Parts {
  Parts(ByteSpan record, bool encrypted)
      : clear(record.first(encrypted ? kLengthBytes : record.size() - kMacBytes)),
        secret(record.subspan(clear.size(), record.size() - kMacBytes - clear.size())),
        mac(record.last(kMacBytes)) {}

  ByteSpan clear, secret, mac;
};

using RecordNonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

RecordNonce nonce_of(std::uint64_t number) {
  RecordNonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  return nonce;
}

}  // namespace

RecordKey::~RecordKey() { sodium_memzero(key_.data(), key_.size()); }

void RecordKey::seal(ByteSpan record) {
  const Parts parts(record, encrypts());
  const RecordNonce nonce = nonce_of(next_++);
  crypto_aead_chacha20poly1305_ietf_encrypt_detached(
      bytes_in(parts.secret), bytes_in(parts.mac), nullptr, bytes_in(parts.secret),
      parts.secret.size(), bytes_in(parts.clear), parts.clear.size(), nullptr, nonce.data(),
      bytes_in(key_));
}

bool RecordKey::open(ByteSpan record) {
  const Parts parts(record, encrypts());
  const RecordNonce nonce = nonce_of(next_++);
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
             bytes_in(parts.secret), nullptr, bytes_in(parts.secret), parts.secret.size(),
             bytes_in(parts.mac), bytes_in(parts.clear), parts.clear.size(), nonce.data(),
             bytes_in(key_)) == 0;
}

Records::Records(TcpProtection protection, const SessionKeys& keys)
    : sends_(protection, keys.send),
      receives_(protection, keys.receive),
      out_(kRecordBytes + kOverhead),
      in_(2 * (kRecordBytes + kOverhead)) {}

std::size_t Records::seal(const Pieces& pieces) {
  if (!sealed().empty()) return 0;
  std::size_t bytes = 0;
  for (const ConstByteSpan piece : pieces) {
    const std::size_t now = std::min(piece.size(), kRecordBytes - bytes);
    if (now != 0) std::memcpy(out_.data() + kLengthBytes + bytes, piece.data(), now);
    bytes += now;
  }
  left_ = out_bytes_ = 0;
  if (bytes == 0) return 0;
  const auto length = static_cast<std::uint32_t>(bytes);
  std::memcpy(out_.data(), &length, kLengthBytes);
  out_bytes_ = bytes + kOverhead;
  sends_.seal(ByteSpan(out_).first(out_bytes_));
  return bytes;
}

// The unfinished record moves to the front if it might not fit behind the opened records.
ByteSpan Records::room() {
  if (in_.size() - begin_ < kRecordBytes + kOverhead || begin_ == filled_) {
    std::memmove(in_.data(), in_.data() + begin_, filled_ - begin_);
    filled_ -= std::exchange(begin_, 0);
  }
  return ByteSpan(in_).subspan(filled_);
}

std::size_t Records::take(const Rooms& rooms) {
  std::size_t bytes = 0;
  for (ByteSpan room : rooms)
    while (!room.empty() && (!opened_.empty() || open_next())) {
      const std::size_t now = std::min(room.size(), opened_.size());
      std::memcpy(room.data(), opened_.data(), now);
      room = room.subspan(now);
      opened_ = opened_.subspan(now);
      bytes += now;
    }
  return bytes;
}

// False if there is no whole record.
bool Records::open_next() {
  const ByteSpan rest = ByteSpan(in_).subspan(begin_, filled_ - begin_);
  if (damaged_ || rest.size() < kLengthBytes) return false;
  std::uint32_t length = 0;
  std::memcpy(&length, rest.data(), kLengthBytes);
  damaged_ = length == 0 || length > kRecordBytes;
  if (damaged_ || rest.size() < length + kOverhead) return false;
  damaged_ = !receives_.open(rest.first(length + kOverhead));
  if (damaged_) return false;
  opened_ = rest.subspan(kLengthBytes, length);
  begin_ += length + kOverhead;
  return true;
}

}  // namespace tersor::tcp
