// Where NCCL is looked for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tersor::nccl {

/// A handle for dlsym, never closed, since NCCL has threads of its own. The one that the process
/// holds already; else the one that TERSOR_NCCL_LIBRARY names; else libnccl.so.2 where the loader
/// finds it; else that of PyTorch's package. Throws TransportError that lists where it was looked
/// for.
void* find_library();

/// nvidia/nccl/lib/libnccl.so.2 in the packages of the first python3 in `path`, which is written as
/// PATH is.
std::optional<std::filesystem::path> find_python_library(const std::string& path);

/// The file that a function is in.
std::string file_of(void* function);

}  // namespace tersor::nccl
