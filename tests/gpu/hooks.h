// Hooks of the PTX interpreter for tests (tests/ptx_device/hooks.h): injected errors,
// and detection of reads of unwritten memory. A real GPU's runtime has no hooks.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstddef>
#include <set>
#include <string>

namespace tersor::test {

template <class Function>
Function* find_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Functions are null on other devices.
struct Hooks {
  int (*fail)(const char*) = find_function<int(const char*)>("ptx_device_fail");
  void (*mark)(const void*, std::size_t,
               int) = find_function<void(const void*, std::size_t, int)>("ptx_device_mark");
  void (*repair)() = find_function<void()>("ptx_device_repair");
  int (*is_broken)() = find_function<int()>("ptx_device_is_broken");
  std::size_t (*calls)(const char*) = find_function<std::size_t(const char*)>("ptx_device_calls");
  const char* (*last_injected)() = find_function<const char*()>("ptx_device_last_injected");
  std::size_t (*live)(const char*) = find_function<std::size_t(const char*)>("ptx_device_live");

  bool are_there() const { return fail != nullptr; }
  /// Lets the call with this number fail, counted over all functions from now on.
  void fail_call(std::size_t number, cudaError_t error) const {
    fail(("any:" + std::to_string(number) + "=" + std::to_string(error)).c_str());
  }
  void fail_none() const { fail(""); }
};

inline const Hooks& hooks() {
  static const Hooks hooks;
  return hooks;
}

/// True for functions called in destructors, because destructors cannot report errors. An empty
/// name means no injected error, because polling ranks make a varying number of calls.
inline bool is_silent(const std::string& function) {
  static const std::set<std::string> known = {"cudaFree",         "cudaFreeHost",
                                              "cudaEventDestroy", "cudaStreamDestroy",
                                              "cudaGraphDestroy", "cudaGraphExecDestroy"};
  return function.empty() || known.count(function) != 0;
}

}  // namespace tersor::test
