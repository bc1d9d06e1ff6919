// Fuzzes the bytes of a connection: both ends of the handshake, and messages after authentication
// (on one or several connections, and encrypted records). No peer passes without the secret, memory
// stays within the announced size, and valid messages arrive unchanged.

#include "comm/transport/host/block_pool.h"
#include "comm/transport/tcp/handshake.h"
#include "comm/transport/tcp/message_reader.h"
#include "comm/transport/tcp/records.h"

#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>

namespace {

using namespace tersor;
using namespace tersor::tcp;

constexpr std::size_t kMostSelected = 8;     // messages; no more are read afterwards
constexpr std::size_t kMostBytes = 4 << 20;  // of a payload; longer payloads are refused here

void require(bool holds) {
  if (!holds) std::abort();
}

/// Reads the input piece by piece.
class Input {
 public:
  explicit Input(ConstByteSpan bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::size_t next() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::size_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  /// Copies at most `most` bytes to `space`, limited by both sizes. Returns the number of bytes.
  std::size_t fill(ByteSpan space, std::size_t most) {
    const std::size_t bytes = std::min({space.size(), most, rest_.size()});
    if (bytes != 0) std::memcpy(space.data(), rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return bytes;
  }

 private:
  ConstByteSpan rest_;
};

template <typename End>
void shake_hands(End& end, Input& input) {
  while (!input.empty() && !end.receive_buffer().empty()) {
    const std::size_t bytes = input.fill(end.receive_buffer(), 1 + input.next());
    if (bytes == 0 || !end.on_received(bytes)) return;
  }
}

void read_records(TcpProtection protection, Input& input) {
  Records records(protection, {});
  std::array<std::byte, 100> space;
  while (!input.empty() && !records.damaged()) {
    records.on_received(input.fill(records.receive_buffer(), 1 + 300 * input.next()));
    require(records.take({space, ByteSpan()}) == 0);
  }
}

void read_messages(std::size_t connections, Input& input) {
  host::BlockPool pool;
  std::size_t whole = 0;
  bool dropping = false;
  MessageReader message_reader(
      1, connections,
      [&](std::size_t bytes) {
        if (bytes > kMostBytes) throw OutOfMemoryError("too long for here");
        return pool.take(bytes);
      },
      [&](const Wire::Arrival& arrival) {
        require(arrival.whole);
        if (arrival.payload)
          require(arrival.payload.bytes().size() == arrival.head.payload_bytes());
        else
          require(dropping || arrival.head.payload_bytes() == 0);
        ++whole;
      });
  std::size_t idle = 0;
  while (!input.empty() && idle < 3 * connections) {
    const std::size_t connection = input.next() % connections, most = 64 * (1 + input.next());
    std::size_t bytes = 0;
    for (const ByteSpan space : message_reader.buffers(connection)) {
      const std::size_t now = input.fill(space, most - std::min(most, bytes));
      bytes += now;
      if (now < space.size()) break;
    }
    idle = bytes == 0 ? idle + 1 : 0;
    if (bytes != 0) message_reader.on_received(connection, bytes);
    if (whole >= kMostSelected && !std::exchange(dropping, true)) message_reader.discard_payloads();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Secret secret(std::string(64, '5'));
  Input input(std::as_bytes(std::span(data, size)));
  const std::size_t kind = input.next() % 7;
  if (kind == 0) {
    ServerHandshake server(secret, 2);
    shake_hands(server, input);
    require(!server.client().has_value());
  } else if (kind == 1) {
    ClientHandshake client(secret, {.from = 1, .to = 2, .ranks = 3, .connections = 1});
    shake_hands(client, input);
    require(!client.authenticated() && !client.verdict().has_value());
  } else if (kind >= 5) {
    read_records(kind == 5 ? TcpProtection::kAuthenticate : TcpProtection::kEncrypt, input);
  } else {
    try {
      read_messages(kind - 1, input);
    } catch (const Error&) {
      // The connection was refused.
    }
  }
  return 0;
}
