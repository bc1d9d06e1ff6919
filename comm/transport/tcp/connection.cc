#include "comm/transport/tcp/connection.h"

#include <tersor/error.h>

#include <utility>

namespace tersor::tcp {
namespace {

constexpr std::size_t kMostRest = std::size_t{64} << 20;  // more than systems buffer
// Limit per poll, to serve all connections.
constexpr std::size_t kMostBytesPerPoll = std::size_t{4} << 20;

}  // namespace

void Connection::send(SendItem item) {
  const bool fault = item.headed && item.head.is_fault();
  fault ? send_queue_.add_first(std::move(item)) : send_queue_.add(std::move(item));
  if (socket_ && writable_) write();
  if (!fault) send_queue_.keep_last(owner_.make_block);
  if (!std::exchange(wanted_, true)) owner_.connect();
}

void Connection::keep(const Job* job) try {
  send_queue_.keep(job, owner_.make_block);
} catch (const std::exception& error) {
  owner_.lose(error.what());
}

void Connection::open(Socket socket) {
  wanted_ = true;
  socket_.emplace(std::move(socket));
  owner_.reactor.watch(socket_->number(), *this);
  readable_ = writable_ = true;
  owner_.reactor.activate(*this);
}

void Connection::look_again() {
  if (busy()) owner_.reactor.activate(*this);
}

void Connection::drop_socket() {
  if (!socket_) return;
  owner_.reactor.forget(socket_->number(), *this);
  socket_.reset();
}

void Connection::close(std::vector<std::shared_ptr<Job>>& dropped) {
  drop_socket();
  send_queue_.drop(dropped);
}

bool Connection::busy() const {
  if (!socket_) return false;
  return (readable_ && !message_reader_.spaces(number_)[0].empty()) || (writable_ && waits());
}

bool Connection::act() {
  const bool written = socket_ && writable_ && waits() && write();
  return (socket_ && readable_ && read()) || written;
}

// Reads bytes received before an error first: the bytes may contain the reason.
bool Connection::read() {
  std::size_t bytes = 0;
  while (socket_ && readable_ && bytes < kMostBytesPerPoll) {
    const ReadSpaces spaces = message_reader_.spaces(number_);
    if (spaces[0].empty()) break;
    const Moved moved = socket_->read(spaces);
    bytes += moved.bytes;
    if (!take(moved)) return true;
  }
  if (bytes != 0) owner_.read();
  return bytes != 0;
}

bool Connection::read_rest() {
  std::size_t bytes = 0;
  try {
    while (socket_ && bytes < kMostRest) {
      const ReadSpaces spaces = message_reader_.spaces(number_);
      const Moved moved = spaces[0].empty() ? Moved{} : socket_->read(spaces);
      if (moved.bytes == 0) break;
      bytes += moved.bytes;
      message_reader_.came(number_, moved.bytes);
    }
  } catch (const Error&) {
    return false;  // lost in any case
  }
  return bytes != 0;
}

// Returns false if the connection has ended.
bool Connection::take(const Moved& moved) {
  std::string error = moved.error;
  bool sound = true;
  try {
    if (moved.bytes != 0) message_reader_.came(number_, moved.bytes);
  } catch (const Error& wrong) {
    error = wrong.what();
    sound = false;
  }
  if (moved.dry && (!ended_ || moved.bytes == 0)) {
    readable_ = false;
    if (error.empty()) error = write_error_;
  }
  if (!error.empty() && sound) owner_.read_rest();
  if (!error.empty()) owner_.lose(error);
  return error.empty();
}

bool Connection::write() {
  std::size_t bytes = 0;
  while (writable_ && waits()) {
    const Moved moved = socket_->write(send_queue_.next());
    bytes += moved.bytes;
    send_queue_.left(moved.bytes, owner_.done);
    writable_ = !moved.dry && moved.error.empty();
    if (moved.error.empty()) continue;
    write_error_ = moved.error;
    readable_ = true;  // the reason may be readable
    owner_.reactor.activate(*this);
  }
  return bytes != 0;
}

}  // namespace tersor::tcp
