// Implements machine.h: by its name and the number that Linux gave it when it was started.
#include "comm/transport/nccl/machine.h"

#include <tersor/wire.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

namespace tersor::nccl {

std::uint64_t machine_number() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string started;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> started;
  return Signature().add(std::string_view(name.data())).add(started).value();
}

}  // namespace tersor::nccl
