#include "comm/transport/nccl/library.h"

#include <dlfcn.h>
#include <tersor/error.h>

#include <cstdlib>
#include <sstream>
#include <system_error>

namespace tersor::nccl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kProbeFunction = "ncclGetVersion";
constexpr const char* kVariable = "TERSOR_NCCL_LIBRARY";

/// Opens a library. On failure, appends the loader's error to `tried`.
void* open(const std::string& name, std::string& tried) {
  if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return handle;
  const char* reason = dlerror();
  tried += std::string("; ") + (reason == nullptr ? name : reason);
  return nullptr;
}

/// The library already in the process: linked, or opened by other code.
std::optional<void*> find_loaded() {
  if (dlsym(RTLD_DEFAULT, kProbeFunction) != nullptr) return RTLD_DEFAULT;  // RTLD_DEFAULT is null
  void* handle = dlopen(kName, RTLD_NOW | RTLD_NOLOAD);
  return handle == nullptr ? std::nullopt : std::optional(handle);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The library in <prefix>/lib/python3.x/{site,dist}-packages.
std::optional<fs::path> library_of_prefix(const fs::path& prefix) {
  std::error_code ignored;
  for (const auto& version : fs::directory_iterator(prefix / "lib", ignored)) {
    if (!version.path().filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      if (auto file = version.path() / packages / "nvidia/nccl/lib" / kName;
          fs::exists(file, ignored))
        return file;
  }
  return std::nullopt;
}

}  // namespace

// The folder on the path counts: python3 of a virtual environment is a link to another folder.
std::optional<fs::path> find_python_library(const std::string& path) {
  std::istringstream folders(path);
  std::error_code ignored;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fs::exists(fs::path(folder) / "python3", ignored))
      return library_of_prefix(fs::path(folder).parent_path());
  return std::nullopt;
}

void* find_library() {
  if (const auto library = find_loaded()) return *library;
  std::string tried;
  if (const std::string named = variable(kVariable); !named.empty()) {
    if (void* handle = open(named, tried); handle != nullptr) return handle;
    throw TransportError(std::string(kVariable) + " does not name an NCCL library" + tried);
  }
  if (void* handle = open(kName, tried); handle != nullptr) return handle;
  if (const auto file = find_python_library(variable("PATH")))
    if (void* handle = open(file->string(), tried); handle != nullptr) return handle;
  throw TransportError(
      "NCCL was not found in this process, in the loader's paths or in python3's packages "
      "(nvidia/nccl/lib): install libnccl2, or set " +
      std::string(kVariable) + " to a libnccl.so.2" + tried);
}

std::string file_of(void* function) {
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return "this process";
  return info.dli_fname;
}

}  // namespace tersor::nccl
