// Whether this is still the process in which something was made, or one that was forked from it:
// that has the memory and the descriptors, but neither the threads nor a rank of its own.
#pragma once

namespace tersor::tcp {

class Process {
 public:
  Process();
  /// Costs nothing but a look at memory.
  bool is_this() const;

 private:
  const unsigned forks_;
};

}  // namespace tersor::tcp
