// Calls of the system by which this program opens descriptors and connects, watched or made to fail
// as a test wants it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tersor::test {

/// While this lives, notes the calls that open descriptors which a program that is started at the
/// same moment would get.
class InheritedDescriptors {
 public:
  InheritedDescriptors();
  ~InheritedDescriptors();
  InheritedDescriptors(const InheritedDescriptors&) = delete;
  InheritedDescriptors& operator=(const InheritedDescriptors&) = delete;

  /// Names of these calls.
  std::vector<std::string> calls() const;
  /// All calls that opened one.
  int opened() const;
};

/// Where a connection that cannot be made ends: at once, or after a while.
enum class Failing { kAtOnce, kLater };

/// While this lives, so many tries to connect fail with an error of the system's. One at a time.
class FailingConnects {
 public:
  FailingConnects(int code, int tries, Failing when);
  ~FailingConnects();
  FailingConnects(const FailingConnects&) = delete;
  FailingConnects& operator=(const FailingConnects&) = delete;

  /// Tries that are yet to fail.
  int left() const;
};

/// While this lives, one of this thread's looks for news, counted from 1, takes so long to begin.
class LateLook {
 public:
  LateLook(int number, std::chrono::milliseconds by);
  ~LateLook();
  LateLook(const LateLook&) = delete;
  LateLook& operator=(const LateLook&) = delete;
};

/// While this lives, the host has another name.
class HostNamed {
 public:
  explicit HostNamed(const char* name);
  ~HostNamed();
  HostNamed(const HostNamed&) = delete;
  HostNamed& operator=(const HostNamed&) = delete;
};

}  // namespace tersor::test
