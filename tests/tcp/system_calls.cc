// Implements system_calls.h. The program's own functions take precedence over the C library.
#include "tests/tcp/system_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <thread>

namespace tersor::test {
namespace {

std::atomic<bool> watching{false};
std::atomic<int> opened_calls{0};
std::mutex mutex;
std::vector<std::string> inherited;
std::atomic<int> failing_code{0};
std::atomic<int> failing_tries{0};
std::atomic<Failing> failing{Failing::kAtOnce};
std::atomic<const char*> host_name{nullptr};
thread_local int looks_until_late = 0;
thread_local std::chrono::milliseconds late_by{0};

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// Records the result of a call. `closes`: true if the descriptor closes on exec.
int noted(int descriptor, bool closes, const char* call) {
  if (descriptor < 0 || !watching) return descriptor;
  ++opened_calls;
  if (closes) return descriptor;
  const std::lock_guard lock(mutex);
  inherited.emplace_back(call);
  return descriptor;
}

/// The error of this attempt, or 0 for success.
int error_of_try(Failing when) {
  if (failing != when) return 0;
  int left = failing_tries;
  while (left > 0 && !failing_tries.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0 ? failing_code.load() : 0;
}

}  // namespace

FailingConnects::FailingConnects(int code, int tries, Failing when) {
  failing_code = code;
  failing = when;
  failing_tries = tries;
}

FailingConnects::~FailingConnects() { failing_tries = 0; }

int FailingConnects::left() const { return failing_tries; }

LateLook::LateLook(int number, std::chrono::milliseconds by) {
  looks_until_late = number;
  late_by = by;
}

LateLook::~LateLook() { looks_until_late = 0; }

HostNamed::HostNamed(const char* name) { host_name = name; }

HostNamed::~HostNamed() { host_name = nullptr; }

InheritedDescriptors::InheritedDescriptors() {
  inherited.clear();
  opened_calls = 0;
  watching = true;
}

InheritedDescriptors::~InheritedDescriptors() { watching = false; }

std::vector<std::string> InheritedDescriptors::calls() const {
  const std::lock_guard lock(mutex);
  return inherited;
}

int InheritedDescriptors::opened() const { return opened_calls; }

}  // namespace tersor::test

using tersor::test::error_of_try;
using tersor::test::Failing;
using tersor::test::next;
using tersor::test::noted;

extern "C" {

int gethostname(char* name, std::size_t bytes) noexcept {
  static auto* const call = next<int(char*, std::size_t)>("gethostname");
  const char* other = tersor::test::host_name;
  if (other == nullptr) return call(name, bytes);
  std::snprintf(name, bytes, "%s", other);
  return 0;
}

int connect(int socket, const sockaddr* to, socklen_t bytes) {
  static auto* const call = next<int(int, const sockaddr*, socklen_t)>("connect");
  const int code = error_of_try(Failing::kAtOnce);
  if (code == 0) return call(socket, to, bytes);
  errno = code;
  return -1;
}

int getsockopt(int socket, int level, int option, void* value, socklen_t* bytes) noexcept {
  static auto* const call = next<int(int, int, int, void*, socklen_t*)>("getsockopt");
  const int result = call(socket, level, option, value, bytes);
  if (level != SOL_SOCKET || option != SO_ERROR || result != 0) return result;
  if (const int code = error_of_try(Failing::kLater)) *static_cast<int*>(value) = code;
  return result;
}

int socket(int domain, int type, int protocol) noexcept {
  static auto* const call = next<int(int, int, int)>("socket");
  return noted(call(domain, type, protocol), (type & SOCK_CLOEXEC) != 0, "socket");
}

int accept(int socket, sockaddr* from, socklen_t* bytes) {
  static auto* const call = next<int(int, sockaddr*, socklen_t*)>("accept");
  return noted(call(socket, from, bytes), false, "accept");
}

int accept4(int socket, sockaddr* from, socklen_t* bytes, int flags) {
  static auto* const call = next<int(int, sockaddr*, socklen_t*, int)>("accept4");
  return noted(call(socket, from, bytes, flags), (flags & SOCK_CLOEXEC) != 0, "accept4");
}

int epoll_create(int size) noexcept {
  static auto* const call = next<int(int)>("epoll_create");
  return noted(call(size), false, "epoll_create");
}

int epoll_create1(int flags) noexcept {
  static auto* const call = next<int(int)>("epoll_create1");
  return noted(call(flags), (flags & EPOLL_CLOEXEC) != 0, "epoll_create1");
}

int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  static auto* const call = next<int(int, epoll_event*, int, int)>("epoll_wait");
  if (tersor::test::looks_until_late > 0 && --tersor::test::looks_until_late == 0)
    std::this_thread::sleep_for(tersor::test::late_by);
  return call(epoll, events, most, timeout);
}

int eventfd(unsigned count, int flags) noexcept {
  static auto* const call = next<int(unsigned, int)>("eventfd");
  return noted(call(count, flags), (flags & EFD_CLOEXEC) != 0, "eventfd");
}
}
