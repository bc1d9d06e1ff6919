// Locates the NCCL library.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tersor::nccl {

/// Returns a handle for dlsym, never closed because NCCL runs own threads. The loaded library of
/// the process has precedence. Otherwise, the search order is: TERSOR_NCCL_LIBRARY, libnccl.so.2 on
/// the loader's path, PyTorch's package. Throws TransportError with a list of the tried locations.
void* find_library();

/// Finds nvidia/nccl/lib/libnccl.so.2 in the packages of the first python3 in `path`, a list in the
/// format of PATH.
std::optional<std::filesystem::path> find_python_library(const std::string& path);

/// The file containing a function.
std::string file_of(void* function);

}  // namespace tersor::nccl
