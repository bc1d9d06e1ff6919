// Keeps the program's signals away from threads started here. Otherwise a handler would run in the
// middle of Tersor's work, and the program's own `sigwait` would not receive the signal.
#pragma once

#include <csignal>

namespace tersor::kernels {

/// Blocks signals in threads started during this object's lifetime. Fault signals and SIGPROF are
/// not blocked.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int own : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPROF, SIGSEGV, SIGSYS, SIGTRAP})
      sigdelset(&blocked, own);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tersor::kernels
