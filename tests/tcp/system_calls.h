// Interposed system calls for opening descriptors and connecting. Tests watch the calls or make the
// calls fail.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tersor::test {

/// While this object lives, records calls opening descriptors inheritable by programs started at
/// the same moment.
class InheritedDescriptors {
 public:
  InheritedDescriptors();
  ~InheritedDescriptors();
  InheritedDescriptors(const InheritedDescriptors&) = delete;
  InheritedDescriptors& operator=(const InheritedDescriptors&) = delete;

  /// The names of these calls.
  std::vector<std::string> calls() const;
  /// The number of all calls opening descriptors.
  int opened() const;
};

/// The time of a connection failure: at once, or later.
enum class Failing { kAtOnce, kLater };

/// While this object lives, `tries` connection attempts fail with the system error `code`. Only one
/// object may exist.
class FailingConnects {
 public:
  FailingConnects(int code, int tries, Failing when);
  ~FailingConnects();
  FailingConnects(const FailingConnects&) = delete;
  FailingConnects& operator=(const FailingConnects&) = delete;

  /// The number of attempts still to fail.
  int left() const;
};

/// While this object lives, delays the start of this thread's poll with number `number` (counted
/// from 1).
class LateLook {
 public:
  LateLook(int number, std::chrono::milliseconds by);
  ~LateLook();
  LateLook(const LateLook&) = delete;
  LateLook& operator=(const LateLook&) = delete;
};

/// While this object lives, the host has another name.
class HostNamed {
 public:
  explicit HostNamed(const char* name);
  ~HostNamed();
  HostNamed(const HostNamed&) = delete;
  HostNamed& operator=(const HostNamed&) = delete;
};

}  // namespace tersor::test
