// A simulated peer connected to a rank's port, controlled by a test.
#pragma once

#include <asio/buffer.hpp>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/tcp/handshake.h"

namespace tersor::test {

inline asio::io_context& test_context() {
  static asio::io_context context;
  return context;
}

/// Addresses of unused loopback ports.
inline std::vector<std::string> free_addresses(int count) {
  std::vector<asio::ip::tcp::acceptor> held;
  std::vector<std::string> addresses;
  for (int number = 0; number < count; ++number) {
    held.emplace_back(test_context(), asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    addresses.push_back("127.0.0.1:" + std::to_string(held.back().local_endpoint().port()));
  }
  return addresses;
}

/// A connection with blocking reads and writes.
class FakePeer {
 public:
  explicit FakePeer(const std::string& address) : socket_(test_context()) {
    const auto colon = address.rfind(':');
    const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1)));
    socket_.connect({asio::ip::make_address(address.substr(0, colon)), port});
  }

  void say(ConstByteSpan bytes) {
    asio::error_code ignored;
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  void say(std::string_view text) { say(std::as_bytes(std::span(text))); }

  /// The next `bytes` bytes from the other end, or fewer if the other end closes.
  std::vector<std::byte> hear(std::size_t bytes) {
    std::vector<std::byte> heard(bytes);
    asio::error_code ignored;
    heard.resize(asio::read(socket_, asio::buffer(heard.data(), bytes), ignored));
    return heard;
  }

  /// True if the other end has closed or closes before sending anything.
  bool is_dropped() {
    std::array<std::byte, 1> one;
    asio::error_code error;
    socket_.read_some(asio::buffer(one), error);
    return error == asio::error::eof || error == asio::error::connection_reset;
  }

  /// True if the other end has sent something or closed.
  bool has_news() {
    socket_.non_blocking(true);
    std::array<std::byte, 1> one;
    asio::error_code error;
    socket_.receive(asio::buffer(one), asio::socket_base::message_peek, error);
    socket_.non_blocking(false);
    return error != asio::error::would_block;
  }

  /// Connects like a rank. Returns the verdict of the other end, or none after a disconnect.
  std::optional<tcp::Verdict> call(const tcp::Secret& secret, const tcp::Hello& hello) {
    tcp::ClientHandshake client(secret, hello);
    say(client.first_message());
    while (!client.receive_buffer().empty()) {
      const auto space = client.receive_buffer();
      asio::error_code error;
      const std::size_t bytes = socket_.read_some(asio::buffer(space.data(), space.size()), error);
      if (error || !client.on_received(bytes)) return std::nullopt;
      say(client.reply());
    }
    return client.verdict();
  }

  void close() { socket_.close(); }

 private:
  asio::ip::tcp::socket socket_;
};

}  // namespace tersor::test
