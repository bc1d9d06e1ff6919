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
constexpr int kCallsOfATry = 2;
constexpr int kNeverWaits = SOCK_NONBLOCK | SOCK_CLOEXEC;

std::string text_of_error(int code) { return std::system_category().message(code); }

/// True for network or peer errors concerning a single connection.
bool is_of_network(int code) {
  constexpr int kCodes[] = {EINTR,       ECONNABORTED, ECONNRESET, EPROTO,       ENETDOWN,
                            ENETUNREACH, ENETRESET,    EHOSTDOWN,  EHOSTUNREACH, ETIMEDOUT};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}

/// True if this system has no free resources.
bool is_crowded(int code) {
  return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

Descriptor new_socket(const Endpoint& of) {
  return Descriptor(socket(of.protocol().family(), SOCK_STREAM | kNeverWaits, IPPROTO_TCP));
}

void set_option(int socket, int level, int option, int value = 1) {
  setsockopt(socket, level, option, &value, sizeof value);
}

/// Returns the error, or 0.
int begin_to_connect(int socket, const Endpoint& to) {
  set_option(socket, IPPROTO_TCP, TCP_SYNCNT, kCallsOfATry);
  if (::connect(socket, to.data(), static_cast<socklen_t>(to.size())) == 0) return 0;
  const int code = errno;
  return code == EINPROGRESS || code == EINTR ? 0 : code;
}

/// Converts the result of a system call for `wanted` bytes.
Moved moved(ssize_t bytes, std::size_t wanted) {
  if (bytes >= 0) {
    const auto count = static_cast<std::size_t>(bytes);
    return {.bytes = count, .dry = count < wanted};
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {.dry = true};
  if (errno == EINTR) return {};
  return {.error = text_of_error(errno)};
}

/// Converts spans to the system's form.
template <typename Spans>
class Vectors {
 public:
  explicit Vectors(const Spans& spans) {
    for (const auto& span : spans)
      if (!span.empty())
        vectors_[count_++] = {const_cast<std::byte*>(span.data()), span.size()},
        bytes_ += span.size();
    message_.msg_iov = vectors_.data();
    message_.msg_iovlen = count_;
  }
  Vectors(const Vectors&) = delete;
  Vectors& operator=(const Vectors&) = delete;

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
  set_option(number(), IPPROTO_TCP, TCP_NODELAY);
}

Socket Socket::connect(const Endpoint& to, Refusal& refusal) {
  Descriptor descriptor = new_socket(to);
  refusal.code = descriptor.open() ? begin_to_connect(descriptor.number(), to) : errno;
  return Socket(std::move(descriptor));
}

Refusal Socket::refusal() const {
  Refusal found;
  socklen_t bytes = sizeof found.code;
  getsockopt(number(), SOL_SOCKET, SO_ERROR, &found.code, &bytes);
  return found;
}

std::string Refusal::text() const { return text_of_error(code); }

bool Refusal::may_pass() const {
  return is_of_network(code) || is_crowded(code) || code == EAGAIN || code == EADDRNOTAVAIL;
}

std::size_t Socket::unacknowledged() const {
  int bytes = 0;
  return ioctl(number(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

void Socket::protect(TcpProtection protection, const SessionKeys& keys) {
  if (protection != TcpProtection::kNone) records_ = std::make_unique<Records>(protection, keys);
}

Moved Socket::read(const ReadSpaces& spaces) {
  if (records_ == nullptr) return receive(spaces);
  while (true) {
    if (const std::size_t bytes = records_->take(spaces); bytes != 0) return {.bytes = bytes};
    if (records_->damaged())
      return {.error = "bytes were changed, repeated or reordered in transit"};
    const Moved came = receive({records_->space(), ByteSpan()});
    if (came.bytes == 0) return came;
    records_->came(came.bytes);
  }
}

Moved Socket::write(const Pieces& pieces) {
  if (records_ == nullptr) return send(pieces);
  const std::size_t taken = records_->seal(pieces);
  if (!pending()) return {};
  Moved moved = send({records_->sealed()});
  records_->left(std::exchange(moved.bytes, taken));
  return moved;
}

Moved Socket::receive(const ReadSpaces& spaces) {
  Vectors<ReadSpaces> space(spaces);
  const ssize_t bytes = recvmsg(number(), space.message(), 0);
  if (bytes == 0 && space.bytes() != 0) return {.error = "it was closed"};
  return moved(bytes, space.bytes());
}

Moved Socket::send(const Pieces& pieces) {
  Vectors<Pieces> all(pieces);
  return moved(sendmsg(number(), all.message(), MSG_NOSIGNAL), all.bytes());
}

Listener::Listener(const Endpoint& at) : descriptor_(new_socket(at)) {
  if (descriptor_.open()) set_option(number(), SOL_SOCKET, SO_REUSEADDR);
  if (!descriptor_.open() || bind(number(), at.data(), static_cast<socklen_t>(at.size())) != 0 ||
      listen(number(), SOMAXCONN) != 0)
    throw TransportError("cannot listen at " + text_of(at) + ": " + text_of_error(errno));
}

std::uint16_t Listener::port() const {
  Endpoint own;
  auto bytes = static_cast<socklen_t>(own.capacity());
  getsockname(number(), own.data(), &bytes);
  return own.port();
}

// Skips connections ended before `accept`.
std::optional<Socket> Listener::accept(bool& crowded) {
  int came = 0;
  do {
    came = accept4(number(), nullptr, nullptr, kNeverWaits);
  } while (came < 0 && is_of_network(errno));
  crowded = came < 0 && is_crowded(errno);
  if (came < 0) return std::nullopt;
  return Socket(Descriptor(came));
}

std::string text_of(const Endpoint& endpoint) {
  std::ostringstream text;
  text << endpoint;
  return text.str();
}

}  // namespace tersor::tcp
