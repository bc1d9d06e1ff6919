// See machine.h.

#include "bench/trainer_cuda/machine.h"

#include <cstring>

namespace trainer_cuda {

void CpuMachine::copy(void* to, const void* from, std::size_t bytes) const {
  std::memcpy(to, from, bytes);
}

}  // namespace trainer_cuda
