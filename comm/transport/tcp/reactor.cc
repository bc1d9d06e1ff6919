// Implements reactor.h with Linux's epoll.
#include "comm/transport/tcp/reactor.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <tersor/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <iterator>
#include <string>

namespace tersor::tcp {
namespace {

constexpr int kMaxEvents = 64;  // per poll; the next poll returns the rest

[[noreturn]] void fail(const char* call) {
  throw TransportError(std::string(call) + " failed: " + std::strerror(errno));
}

timespec time_until(Clock::time_point end) {
  const auto remaining = std::max<std::chrono::nanoseconds>(end - Clock::now(), {});
  const auto seconds = std::chrono::floor<std::chrono::seconds>(remaining);
  return {static_cast<time_t>(seconds.count()), static_cast<long>((remaining - seconds).count())};
}

/// Wraps a new descriptor.
Descriptor make_descriptor(int fd, const char* call) {
  if (fd < 0) fail(call);
  return Descriptor(fd);
}

}  // namespace

Reactor::Reactor()
    : epoll_(make_descriptor(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      alarm_(make_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, alarm_.fd(), &event) != 0) fail("epoll_ctl");
}

void Reactor::add(int socket, EventHandler& handler) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &handler;
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, socket, &event) != 0) fail("epoll_ctl");
}

void Reactor::remove(int socket, EventHandler& handler) {
  epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, socket, nullptr);
  std::erase(scheduled_, &handler);
  std::replace(running_.begin(), running_.end(), &handler, static_cast<EventHandler*>(nullptr));
  handler.scheduled_ = handler.readable_ = handler.writable_ = handler.hangup_ = false;
}

void Reactor::schedule(EventHandler& handler) {
  if (handler.scheduled_) return;
  handler.scheduled_ = true;
  scheduled_.push_back(&handler);
  has_work_.store(true);
}

void Reactor::poll_events() {
  std::array<epoll_event, kMaxEvents> events;
  const int count = epoll_wait(epoll_.fd(), events.data(), kMaxEvents, 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.ptr != nullptr) record(event.events, event.data.ptr);
  }
}

void Reactor::record(std::uint32_t events, void* data) {
  auto& handler = *static_cast<EventHandler*>(data);
  const bool hangup = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  handler.hangup_ = handler.hangup_ || hangup;
  handler.readable_ = handler.readable_ || hangup || (events & EPOLLIN) != 0;
  handler.writable_ = handler.writable_ || hangup || (events & EPOLLOUT) != 0;
  schedule(handler);
}

bool Reactor::poll() {
  poll_events();
  bool progressed = false;
  running_.swap(scheduled_);
  for (std::size_t index = 0; index < running_.size(); ++index) {
    if (running_[index] == nullptr) continue;
    running_[index]->scheduled_ = false;
    progressed |= running_[index]->on_events();
    if (running_[index] != nullptr && running_[index]->has_work()) schedule(*running_[index]);
  }
  running_.clear();
  update_has_work();
  return progressed;
}

// Wakes sleeping threads to continue the remaining work.
void Reactor::update_has_work() {
  has_work_.store(!scheduled_.empty());
  if (!scheduled_.empty() && sleepers_.load() != 0) interrupt();
}

void Reactor::sleep(Clock::time_point until, int alarm) const {
  sleepers_.fetch_add(1);
  if (!has_work_.load()) {
    const timespec time = time_until(until);
    pollfd descriptors[] = {{.fd = epoll_.fd(), .events = POLLIN, .revents = 0},
                            {.fd = alarm, .events = POLLIN, .revents = 0}};
    ppoll(descriptors, std::size(descriptors), &time, nullptr);
  }
  sleepers_.fetch_sub(1);
}

void Reactor::interrupt() const {
  const std::uint64_t once = 1;
  [[maybe_unused]] const auto written = write(alarm_.fd(), &once, sizeof once);
}

}  // namespace tersor::tcp
