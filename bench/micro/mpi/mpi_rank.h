// This process as one of two ranks over MPI.
#pragma once

#include <tersor/mpi.h>

#include <memory>

namespace tersor::bench {

/// True if mpirun or another launcher of MPI started this process.
bool started_by_mpi();

class MpiRank {
 public:
  /// Throws InvalidArgumentError unless there are two ranks.
  MpiRank();

  Transport& transport() { return *transport_; }

 private:
  MpiSession session_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace tersor::bench
