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

constexpr int kMostNews = 64;  // per poll; the next poll returns the rest

[[noreturn]] void fail(const char* call) {
  throw TransportError(std::string(call) + " failed: " + std::strerror(errno));
}

timespec time_until(Clock::time_point end) {
  const auto left = std::max<std::chrono::nanoseconds>(end - Clock::now(), {});
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  return {static_cast<time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
}

/// Wraps a new descriptor.
Descriptor opened(int number, const char* call) {
  if (number < 0) fail(call);
  return Descriptor(number);
}

}  // namespace

Reactor::Reactor()
    : epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      alarm_(opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, alarm_.number(), &event) != 0) fail("epoll_ctl");
}

void Reactor::watch(int socket, Watched& who) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &who;
  if (epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, socket, &event) != 0) fail("epoll_ctl");
}

void Reactor::forget(int socket, Watched& who) {
  epoll_ctl(epoll_.number(), EPOLL_CTL_DEL, socket, nullptr);
  std::erase(active_, &who);
  std::replace(acting_.begin(), acting_.end(), &who, static_cast<Watched*>(nullptr));
  who.active_ = who.readable_ = who.writable_ = who.ended_ = false;
}

void Reactor::activate(Watched& who) {
  if (who.active_) return;
  who.active_ = true;
  active_.push_back(&who);
  busy_.store(true);
}

void Reactor::look() {
  std::array<epoll_event, kMostNews> events;
  const int count = epoll_wait(epoll_.number(), events.data(), kMostNews, 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.ptr != nullptr) record(event.events, event.data.ptr);
  }
}

void Reactor::record(std::uint32_t events, void* watched) {
  auto& who = *static_cast<Watched*>(watched);
  const bool ended = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  who.ended_ = who.ended_ || ended;
  who.readable_ = who.readable_ || ended || (events & EPOLLIN) != 0;
  who.writable_ = who.writable_ || ended || (events & EPOLLOUT) != 0;
  activate(who);
}

bool Reactor::poll() {
  look();
  bool moved = false;
  acting_.swap(active_);
  for (std::size_t index = 0; index < acting_.size(); ++index) {
    if (acting_[index] == nullptr) continue;
    acting_[index]->active_ = false;
    moved |= acting_[index]->act();
    if (acting_[index] != nullptr && acting_[index]->busy()) activate(*acting_[index]);
  }
  acting_.clear();
  record_busy();
  return moved;
}

// Wakes sleeping threads to continue the remaining work.
void Reactor::record_busy() {
  busy_.store(!active_.empty());
  if (!active_.empty() && sleepers_.load() != 0) interrupt();
}

void Reactor::sleep(Clock::time_point until, int alarm) const {
  sleepers_.fetch_add(1);
  if (!busy_.load()) {
    const timespec time = time_until(until);
    pollfd news[] = {{.fd = epoll_.number(), .events = POLLIN, .revents = 0},
                     {.fd = alarm, .events = POLLIN, .revents = 0}};
    ppoll(news, std::size(news), &time, nullptr);
  }
  sleepers_.fetch_sub(1);
}

void Reactor::interrupt() const {
  const std::uint64_t once = 1;
  [[maybe_unused]] const auto written = write(alarm_.number(), &once, sizeof once);
}

}  // namespace tersor::tcp
