// Helpers of the device's own tests. Each test file adds a function to the list of main().
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

inline int failures = 0;

inline void expect(bool fine, const char* file, int line, const char* what) {
  if (fine) return;
  std::printf("%s:%d: failed: %s\n", file, line, what);
  ++failures;
}
#define EXPECT(...) expect((__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__)

template <class T>
struct OnDevice {
  explicit OnDevice(const std::vector<T>& values) : count(values.size()) {
    cudaMalloc(&pointer, count * sizeof(T));
    cudaMemcpy(pointer, values.data(), count * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~OnDevice() { cudaFree(pointer); }
  std::vector<T> host() const {
    std::vector<T> values(count);
    cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
  T* pointer = nullptr;
  std::size_t count;
};

/// The exit status of a function in a separate process with these settings, or -1 after another
/// end. A device broken by a mistake ends with its process.
template <class F>
int alone(F&& function, std::initializer_list<std::pair<const char*, const char*>> settings = {}) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    for (const auto& [name, value] : settings) setenv(name, value, 1);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(200);
    _exit(function() % 256);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Functions starting processes come first, because no threads exist yet.
void test_mistakes();
void test_late_stores();
void test_refusals();
void test_kernels();
void test_calls();
void test_rounding();
