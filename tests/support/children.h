// Forks processes of a test, each a rank.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace tersor::test {

/// Runs `body` in a child process. The child runs nothing else of the test. The exit status is 1 if
/// `body` throws.
template <typename Body>
pid_t fork_rank(int rank, const Body& body) {
  const pid_t process = fork();
  if (process < 0) throw std::runtime_error("cannot fork");
  if (process != 0) return process;
  try {
    body();
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  } catch (...) {
    std::fprintf(stderr, "rank %d: something else was thrown\n", rank);
  }
  _exit(1);
}

/// Waits for a child. Returns true if the exit status is 0.
inline bool ended_well(pid_t process) {
  int ended = 0;
  return waitpid(process, &ended, 0) == process && WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
}

}  // namespace tersor::test
