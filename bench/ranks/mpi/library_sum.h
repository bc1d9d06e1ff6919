// Open MPI's own sum with its fastest algorithm: the reference for Tersor's sums.
#pragma once

#include <mpi.h>
#include <tersor/span.h>

#include <cstddef>
#include <map>
#include <vector>

namespace tersor::bench {

class LibrarySum {
 public:
  /// Enables the choice of single algorithms. Call before MPI is initialised.
  static void prepare();

  /// Makes a communicator per algorithm. A collective call. Makes a single communicator if the user
  /// chose an algorithm (OMPI_MCA_coll_tuned_allreduce_algorithm) or if MPI does not offer this
  /// choice.
  LibrarySum();
  ~LibrarySum();
  LibrarySum(const LibrarySum&) = delete;
  LibrarySum& operator=(const LibrarySum&) = delete;

  /// Sums f32 values in place. The first sum of each length times all algorithms on separate
  /// values. Throws InvalidArgumentError for values of another type.
  void add(ValueSpan values);

 private:
  MPI_Comm fastest_for(std::size_t count);

  std::vector<MPI_Comm> communicators_;
  std::map<std::size_t, MPI_Comm> fastest_;  // by count
};

}  // namespace tersor::bench
