#include "comm/transport/tcp/connection.h"

#include <tersor/error.h>

#include <utility>

namespace tersor::tcp {
namespace {

constexpr std::size_t kMaxDrainBytes = std::size_t{64} << 20;  // more than systems buffer
// Limit per poll, to serve all connections.
constexpr std::size_t kMaxBytesPerPoll = std::size_t{4} << 20;

}  // namespace

void Connection::send(SendItem item) {
  const bool fault = item.has_header && item.head.is_fault();
  fault ? send_queue_.add_first(std::move(item)) : send_queue_.add(std::move(item));
  if (socket_ && writable_) write();
  if (!fault) send_queue_.copy_last(owner_.make_block);
  if (!std::exchange(requested_, true)) owner_.connect();
}

void Connection::keep(const Job* job) try {
  send_queue_.copy_unsent(job, owner_.make_block);
} catch (const std::exception& error) {
  owner_.on_lost(error.what());
}

void Connection::attach(Socket socket) {
  requested_ = true;
  socket_.emplace(std::move(socket));
  owner_.reactor.add(socket_->fd(), *this);
  readable_ = writable_ = true;
  owner_.reactor.schedule(*this);
}

void Connection::resume_reading() {
  if (has_work()) owner_.reactor.schedule(*this);
}

void Connection::close_socket() {
  if (!socket_) return;
  owner_.reactor.remove(socket_->fd(), *this);
  socket_.reset();
}

void Connection::close(std::vector<std::shared_ptr<Job>>& dropped) {
  close_socket();
  send_queue_.drop(dropped);
}

bool Connection::has_work() const {
  if (!socket_) return false;
  return (readable_ && !message_reader_.buffers(number_)[0].empty()) || (writable_ && has_unsent());
}

bool Connection::on_events() {
  const bool written = socket_ && writable_ && has_unsent() && write();
  return (socket_ && readable_ && read()) || written;
}

// Reads bytes received before an error first: the bytes may contain the reason.
bool Connection::read() {
  std::size_t bytes = 0;
  while (socket_ && readable_ && bytes < kMaxBytesPerPoll) {
    const ReadBuffers buffers = message_reader_.buffers(number_);
    if (buffers[0].empty()) break;
    const IoResult result = socket_->read(buffers);
    bytes += result.bytes;
    if (!handle_read(result)) return true;
  }
  if (bytes != 0) owner_.on_read();
  return bytes != 0;
}

bool Connection::drain() {
  std::size_t bytes = 0;
  try {
    while (socket_ && bytes < kMaxDrainBytes) {
      const ReadBuffers buffers = message_reader_.buffers(number_);
      const IoResult result = buffers[0].empty() ? IoResult{} : socket_->read(buffers);
      if (result.bytes == 0) break;
      bytes += result.bytes;
      message_reader_.on_received(number_, result.bytes);
    }
  } catch (const Error&) {
    return false;  // lost in any case
  }
  return bytes != 0;
}

// Returns false if the connection has ended.
bool Connection::handle_read(const IoResult& result) {
  std::string error = result.error;
  bool valid = true;
  try {
    if (result.bytes != 0) message_reader_.on_received(number_, result.bytes);
  } catch (const Error& failure) {
    error = failure.what();
    valid = false;
  }
  if (result.would_block && (!hangup_ || result.bytes == 0)) {
    readable_ = false;
    if (error.empty()) error = write_error_;
  }
  if (!error.empty() && valid) owner_.drain();
  if (!error.empty()) owner_.on_lost(error);
  return error.empty();
}

bool Connection::write() {
  std::size_t bytes = 0;
  while (writable_ && has_unsent()) {
    const IoResult result = socket_->write(send_queue_.next());
    bytes += result.bytes;
    send_queue_.on_sent(result.bytes, owner_.done);
    writable_ = !result.would_block && result.error.empty();
    if (result.error.empty()) continue;
    write_error_ = result.error;
    readable_ = true;  // the reason may be readable
    owner_.reactor.schedule(*this);
  }
  return bytes != 0;
}

}  // namespace tersor::tcp
