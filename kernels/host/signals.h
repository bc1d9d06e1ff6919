// Signals are for the threads of the program, not for those that are begun here: a handler would
// run in the middle of our work, and the program's own `sigwait` would wait in vain.
#pragma once

#include <csignal>

namespace tersor::kernels {

/// Threads that are begun while this lives get no signals but those of their own mistakes, and of
/// profilers.
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
