// Implements socket.h.
#include "comm/transport/tcp/socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <tersor/error.h>

#include <asio/buffer.hpp>
#include <asio/error.hpp>

#include <array>
#include <cerrno>
#include <sstream>
#include <utility>

namespace tersor::tcp {
namespace {

/// `wanted` bytes were asked for.
Moved moved(std::size_t bytes, std::size_t wanted, const asio::error_code& error) {
  if (error == asio::error::would_block || error == asio::error::try_again)
    return {.bytes = 0, .dry = true};
  if (error == asio::error::interrupted) return {};
  if (error == asio::error::eof) return {.error = "it was closed"};
  if (error) return {.error = error.message()};
  return {.bytes = bytes, .dry = bytes < wanted};
}

}  // namespace

Socket::Socket(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {
  asio::error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  fcntl(number(), F_SETFD, FD_CLOEXEC);  // a program that is started here keeps nothing open
}

Socket Socket::connect(asio::io_context& context, const Endpoint& to) {
  asio::ip::tcp::socket socket(context);
  asio::error_code error;
  socket.open(to.protocol(), error);
  if (error) throw TransportError("no socket for " + text_of(to) + ": " + error.message());
  Socket made(std::move(socket));
  made.socket_.native_non_blocking(true, error);
  // By the system's own call: Asio's waits until the connection is there.
  const bool there = ::connect(made.number(), to.data(), static_cast<socklen_t>(to.size())) == 0;
  const int code = there ? 0 : errno;
  if (code != 0 && code != EINPROGRESS && code != EINTR)
    throw TransportError("cannot connect to " + text_of(to) + ": " +
                         asio::error_code(code, asio::system_category()).message());
  return made;
}

void Socket::close() {
  asio::error_code ignored;
  socket_.close(ignored);
}

std::string Socket::connect_error() {
  int code = 0;
  socklen_t bytes = sizeof code;
  getsockopt(number(), SOL_SOCKET, SO_ERROR, &code, &bytes);
  return code == 0 ? "" : asio::error_code(code, asio::system_category()).message();
}

void Socket::finish_sending() {
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

std::size_t Socket::unacknowledged() {
  int bytes = 0;
  return ioctl(number(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

Moved Socket::read(const Rooms& rooms) {
  std::array<asio::mutable_buffer, std::tuple_size_v<Rooms>> buffers;
  for (std::size_t i = 0; i < rooms.size(); ++i)
    buffers[i] = asio::buffer(rooms[i].data(), rooms[i].size());
  asio::error_code error;
  const std::size_t bytes = socket_.read_some(buffers, error);
  return moved(bytes, asio::buffer_size(buffers), error);
}

Moved Socket::write(const Pieces& pieces) {
  std::array<asio::const_buffer, kMostPieces> buffers;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    buffers[i] = asio::buffer(pieces[i].data(), pieces[i].size());
  asio::error_code error;
  const std::size_t bytes = socket_.write_some(buffers, error);
  return moved(bytes, asio::buffer_size(buffers), error);
}

bool Socket::write_all(ConstByteSpan bytes) { return write({bytes}).bytes == bytes.size(); }

Listener::Listener(asio::io_context& context, const Endpoint& at) : acceptor_(context) {
  try {
    acceptor_.open(at.protocol());
    fcntl(number(), F_SETFD, FD_CLOEXEC);
    acceptor_.set_option(asio::socket_base::reuse_address(true));
    acceptor_.bind(at);
    acceptor_.listen();
    acceptor_.non_blocking(true);
  } catch (const asio::system_error& error) {
    throw TransportError("cannot listen at " + text_of(at) + ": " + error.code().message());
  }
}

void Listener::close() {
  asio::error_code ignored;
  acceptor_.close(ignored);
}

std::optional<Socket> Listener::accept(bool& crowded) {
  asio::error_code error;
  asio::ip::tcp::socket socket(acceptor_.get_executor());
  acceptor_.accept(socket, error);
  crowded = error == asio::error::no_descriptors || error == asio::error::no_buffer_space ||
            error == asio::error::no_memory;
  if (error) return std::nullopt;
  return Socket(std::move(socket));
}

std::string text_of(const Endpoint& endpoint) {
  std::ostringstream text;
  text << endpoint;
  return text.str();
}

}  // namespace tersor::tcp
