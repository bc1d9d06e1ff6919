#include "comm/transport/tcp/socket.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

namespace tersor::tcp {
namespace {

// SYN retries, after 1 s and 3 s: an attempt ends after 7 s instead of minutes.
constexpr int kSynRetries = 2;
constexpr int kNonblocking = SOCK_NONBLOCK | SOCK_CLOEXEC;

std::string text_of_error(int code) { return std::system_category().message(code); }

/// True for network or peer errors concerning a single connection.
bool is_network_error(int code) {
  constexpr int kCodes[] = {EINTR,       ECONNABORTED, ECONNRESET, EPROTO,       ENETDOWN,
                            ENETUNREACH, ENETRESET,    EHOSTDOWN,  EHOSTUNREACH, ETIMEDOUT};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}

/// True if this system has no free resources.
bool is_exhausted(int code) {
  return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

Descriptor new_socket(const Endpoint& endpoint) {
  return Descriptor(socket(endpoint.protocol().family(), SOCK_STREAM | kNonblocking, IPPROTO_TCP));
}

void set_option(int socket, int level, int option, int value = 1) {
  setsockopt(socket, level, option, &value, sizeof value);
}

/// Returns the error, or 0.
int start_connect(int socket, const Endpoint& to) {
  set_option(socket, IPPROTO_TCP, TCP_SYNCNT, kSynRetries);
  if (::connect(socket, to.data(), static_cast<socklen_t>(to.size())) == 0) return 0;
  const int code = errno;
  return code == EINPROGRESS || code == EINTR ? 0 : code;
}

/// Converts the result of a system call for `wanted` bytes.
IoResult to_io_result(ssize_t bytes, std::size_t wanted) {
  if (bytes >= 0) {
    const auto count = static_cast<std::size_t>(bytes);
    return {.bytes = count, .would_block = count < wanted};
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {.would_block = true};
  if (errno == EINTR) return {};
  return {.error = text_of_error(errno)};
}

/// Converts spans to the system's form.
template <typename Spans>
class IoVectors {
 public:
  explicit IoVectors(const Spans& spans) {
    for (const auto& span : spans)
      if (!span.empty())
        vectors_[count_++] = {const_cast<std::byte*>(span.data()), span.size()},
        bytes_ += span.size();
    message_.msg_iov = vectors_.data();
    message_.msg_iovlen = count_;
  }
  IoVectors(const IoVectors&) = delete;
  IoVectors& operator=(const IoVectors&) = delete;

  msghdr* message() { return &message_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::array<iovec, std::tuple_size_v<Spans>> vectors_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
  msghdr message_{};
};

}  // namespace

Socket::Socket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  set_option(fd(), IPPROTO_TCP, TCP_NODELAY);
}

Socket Socket::connect(const Endpoint& to, ConnectError& error) {
  Descriptor descriptor = new_socket(to);
  error.code = descriptor.is_open() ? start_connect(descriptor.fd(), to) : errno;
  return Socket(std::move(descriptor));
}

ConnectError Socket::connect_error() const {
  ConnectError found;
  socklen_t bytes = sizeof found.code;
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &found.code, &bytes);
  return found;
}

std::string ConnectError::text() const { return text_of_error(code); }

bool ConnectError::is_transient() const {
  return is_network_error(code) || is_exhausted(code) || code == EAGAIN || code == EADDRNOTAVAIL;
}

std::size_t Socket::unacknowledged() const {
  int bytes = 0;
  return ioctl(fd(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

void Socket::protect(TcpProtection protection, const SessionKeys& keys) {
  if (protection != TcpProtection::kNone) records_ = std::make_unique<Records>(protection, keys);
}

IoResult Socket::read(const ReadBuffers& buffers) {
  if (records_ == nullptr) return receive(buffers);
  while (true) {
    if (const std::size_t bytes = records_->take(buffers); bytes != 0) return {.bytes = bytes};
    if (records_->damaged())
      return {.error = "bytes were changed, repeated or reordered in transit"};
    const IoResult received = receive({records_->receive_buffer(), ByteSpan()});
    if (received.bytes == 0) return received;
    records_->on_received(received.bytes);
  }
}

IoResult Socket::write(const WriteBuffers& buffers) {
  if (records_ == nullptr) return send(buffers);
  const std::size_t taken = records_->seal(buffers);
  if (!pending()) return {};
  IoResult result = send({records_->sealed()});
  records_->on_sent(std::exchange(result.bytes, taken));
  return result;
}

IoResult Socket::receive(const ReadBuffers& buffers) {
  IoVectors<ReadBuffers> vectors(buffers);
  const ssize_t bytes = recvmsg(fd(), vectors.message(), 0);
  if (bytes == 0 && vectors.bytes() != 0) return {.error = "it was closed"};
  return to_io_result(bytes, vectors.bytes());
}

IoResult Socket::send(const WriteBuffers& buffers) {
  IoVectors<WriteBuffers> vectors(buffers);
  return to_io_result(sendmsg(fd(), vectors.message(), MSG_NOSIGNAL), vectors.bytes());
}

Listener::Listener(const Endpoint& at) : descriptor_(new_socket(at)) {
  if (descriptor_.is_open()) set_option(fd(), SOL_SOCKET, SO_REUSEADDR);
  if (!descriptor_.is_open() || bind(fd(), at.data(), static_cast<socklen_t>(at.size())) != 0 ||
      listen(fd(), SOMAXCONN) != 0)
    throw TransportError("cannot listen at " + text_of(at) + ": " + text_of_error(errno));
}

std::uint16_t Listener::port() const {
  Endpoint own;
  auto bytes = static_cast<socklen_t>(own.capacity());
  getsockname(fd(), own.data(), &bytes);
  return own.port();
}

// Skips connections ended before `accept`.
std::optional<Socket> Listener::accept(bool& exhausted) {
  int accepted = 0;
  do {
    accepted = accept4(fd(), nullptr, nullptr, kNonblocking);
  } while (accepted < 0 && is_network_error(errno));
  exhausted = accepted < 0 && is_exhausted(errno);
  if (accepted < 0) return std::nullopt;
  return Socket(Descriptor(accepted));
}

std::string text_of(const Endpoint& endpoint) {
  std::ostringstream text;
  text << endpoint;
  return text.str();
}

}  // namespace tersor::tcp
