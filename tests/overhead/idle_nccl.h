// NCCL whose functions succeed at once. Others agree with all that this rank says.
#pragma once

#include "comm/transport/nccl/api.h"

namespace tersor::idle {

/// NCCL while it lives, one at a time: `nccl::api()` is its table.
class Nccl {
 public:
  Nccl();
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

 private:
  nccl::Api table_;
};

/// A communicator of rank 0 of so many.
ncclComm_t communicator_of(int ranks);

}  // namespace tersor::idle
