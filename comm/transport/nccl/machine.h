// Which machine this is.
#pragma once

#include <cstdint>

namespace tersor::nccl {

/// The same for all processes of one machine, containers on it too where they share its name.
std::uint64_t machine_number();

}  // namespace tersor::nccl
