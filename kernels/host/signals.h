// Keeps the program's signals away from threads started here. Otherwise a handler would run in the
// middle of Tersor's work, and the program's own `sigwait` would not receive the signal.
#pragma once

#include <csignal>

namespace tersor::kernels {

/// Blocks signals in threads started during this object's lifetime. Fault signals and SIGPROF are
/// not blocked.
class SignalsKeptOut {
 public:
  SignalsKeptOut() {
    sigset_t kept;
    sigfillset(&kept);
    for (const int own : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPROF, SIGSEGV, SIGSYS, SIGTRAP})
      sigdelset(&kept, own);
    pthread_sigmask(SIG_BLOCK, &kept, &before_);
  }
  ~SignalsKeptOut() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsKeptOut(const SignalsKeptOut&) = delete;
  SignalsKeptOut& operator=(const SignalsKeptOut&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tersor::kernels
