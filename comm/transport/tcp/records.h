// TcpOptions::protect: the bytes of one connection as a sequence of authenticated records. The
// classes hold no socket: bytes go in, records come out, and the reverse.
//
//   record   4 bytes: the number of data bytes, 1 to kRecordBytes (little-endian)
//            the data, encrypted for TcpProtection::kEncrypt
//            16 bytes: the MAC
//
// ChaCha20-Poly1305 (RFC 8439). kAuthenticate passes the data as associated data. The nonce is the
// record's number and each direction has a key of its own, and a changed, repeated, reordered or
// missing record fails. A missing end of the sequence is a connection that closed without goodbye.
#pragma once

#include <tersor/span.h>
#include <tersor/tcp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport/tcp/handshake.h"
#include "comm/transport/tcp/message_reader.h"
#include "comm/transport/tcp/send_queue.h"

namespace tersor::tcp {

inline constexpr std::size_t kRecordBytes = 64 * 1024;

/// The records of both directions of a connection.
class Records {
 public:
  Records(TcpProtection protection, const SessionKeys& keys);
  ~Records();
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  /// The sealed bytes that have not left.
  ConstByteSpan sealed() const { return ConstByteSpan(out_).subspan(sent_, out_bytes_ - sent_); }
  void on_sent(std::size_t bytes) { sent_ += bytes; }
  /// Makes a record once all sealed bytes have left. Returns the number of bytes taken.
  std::size_t seal(const WriteBuffers& buffers);

  /// The buffer of received bytes, if `take` finds no byte.
  ByteSpan receive_buffer();
  void on_received(std::size_t bytes) { filled_ += bytes; }
  /// Moves the bytes of opened records into the buffers. Returns their number.
  std::size_t take(const ReadBuffers& buffers);
  /// True once a record failed: all later bytes are worthless.
  bool damaged() const { return damaged_; }

 private:
  /// A key, and the nonce of the next record.
  struct Direction {
    Digest key;
    std::array<unsigned char, 12> nonce = {};
  };

  std::size_t clear_bytes(ByteSpan record) const;
  bool open_next();

  const TcpProtection protection_;
  Direction sends_, receives_;
  std::vector<std::byte> out_;
  std::size_t out_bytes_ = 0;
  std::size_t sent_ = 0;
  std::vector<std::byte> in_;
  std::size_t begin_ = 0;   // of the first unopened record
  std::size_t filled_ = 0;  // end of the received bytes
  ByteSpan opened_;         // bytes of a record, to be taken
  bool damaged_ = false;
};

}  // namespace tersor::tcp
