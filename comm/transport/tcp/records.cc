#include "comm/transport/tcp/records.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tersor::tcp {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
constexpr std::size_t kMacBytes = crypto_aead_chacha20poly1305_ietf_ABYTES;
constexpr std::size_t kOverhead = kLengthBytes + kMacBytes;
static_assert(kDigestBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES);

unsigned char* raw(ByteSpan span) { return reinterpret_cast<unsigned char*>(span.data()); }

}  // namespace

Records::Records(TcpProtection protection, const SessionKeys& keys)
    : protection_(protection),
      sends_{keys.send},
      receives_{keys.receive},
      out_(kRecordBytes + kOverhead),
      in_(2 * (kRecordBytes + kOverhead)) {
  static_assert(sizeof(Direction::nonce) == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
}

Records::~Records() {
  for (Direction* each : {&sends_, &receives_}) sodium_memzero(each->key.data(), kDigestBytes);
}

// The cipher encrypts the rest.
std::size_t Records::clear_bytes(ByteSpan record) const {
  return protection_ == TcpProtection::kEncrypt ? kLengthBytes : record.size() - kMacBytes;
}

std::size_t Records::seal(const WriteBuffers& buffers) {
  if (!sealed().empty()) return 0;
  std::size_t bytes = 0;
  for (const ConstByteSpan buffer : buffers) {
    const std::size_t count = std::min(buffer.size(), kRecordBytes - bytes);
    if (count != 0) std::memcpy(out_.data() + kLengthBytes + bytes, buffer.data(), count);
    bytes += count;
  }
  sent_ = out_bytes_ = 0;
  if (bytes == 0) return 0;
  const auto length = static_cast<std::uint32_t>(bytes);
  std::memcpy(out_.data(), &length, kLengthBytes);
  out_bytes_ = bytes + kOverhead;
  const ByteSpan record = ByteSpan(out_).first(out_bytes_);
  const std::size_t clear = clear_bytes(record);
  unsigned char* const rest = raw(record.subspan(clear));
  crypto_aead_chacha20poly1305_ietf_encrypt(rest, nullptr, rest, record.size() - clear - kMacBytes,
                                            raw(record), clear, nullptr, sends_.nonce.data(),
                                            raw(sends_.key));
  sodium_increment(sends_.nonce.data(), sends_.nonce.size());
  return bytes;
}

// Moves the unfinished record to the front if the space after the opened records may be too small.
ByteSpan Records::receive_buffer() {
  if (in_.size() - begin_ < kRecordBytes + kOverhead || begin_ == filled_) {
    std::memmove(in_.data(), in_.data() + begin_, filled_ - begin_);
    filled_ -= std::exchange(begin_, 0);
  }
  return ByteSpan(in_).subspan(filled_);
}

std::size_t Records::take(const ReadBuffers& buffers) {
  std::size_t bytes = 0;
  for (ByteSpan buffer : buffers)
    while (!buffer.empty() && (!opened_.empty() || open_next())) {
      const std::size_t count = std::min(buffer.size(), opened_.size());
      std::memcpy(buffer.data(), opened_.data(), count);
      buffer = buffer.subspan(count);
      opened_ = opened_.subspan(count);
      bytes += count;
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
  const ByteSpan record = rest.first(length + kOverhead);
  const std::size_t clear = clear_bytes(record);
  unsigned char* const ciphertext = raw(record.subspan(clear));
  damaged_ = crypto_aead_chacha20poly1305_ietf_decrypt(
                 ciphertext, nullptr, nullptr, ciphertext, record.size() - clear, raw(record),
                 clear, receives_.nonce.data(), raw(receives_.key)) != 0;
  if (damaged_) return false;
  sodium_increment(receives_.nonce.data(), receives_.nonce.size());
  opened_ = rest.subspan(kLengthBytes, length);
  begin_ += length + kOverhead;
  return true;
}

}  // namespace tersor::tcp
