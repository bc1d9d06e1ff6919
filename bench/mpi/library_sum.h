// Open MPI's own sum, by whichever of its algorithms is quickest: what ours has to beat.
#pragma once

#include <mpi.h>
#include <tersor/span.h>

#include <cstddef>
#include <map>
#include <vector>

namespace tersor::bench {

class LibrarySum {
 public:
  /// Lets MPI's algorithms be chosen one by one; before MPI is initialised.
  static void prepare();

  /// Makes a communicator for each algorithm, collectively; only one where the user chose one
  /// (OMPI_MCA_coll_tuned_allreduce_algorithm) or MPI knows no such choice.
  LibrarySum();
  ~LibrarySum();
  LibrarySum(const LibrarySum&) = delete;
  LibrarySum& operator=(const LibrarySum&) = delete;

  /// In place, f32. The first sum of a length tries all algorithms, on values of its own.
  /// Throws InvalidArgument for values of another type.
  void add(ValueSpan values);

 private:
  MPI_Comm quickest_for(std::size_t count);

  std::vector<MPI_Comm> communicators_;
  std::map<std::size_t, MPI_Comm> quickest_;  // by count
};

}  // namespace tersor::bench
