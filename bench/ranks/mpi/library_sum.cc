// Implements library_sum.h with MPI's tool interface.
#include "bench/ranks/mpi/library_sum.h"

#include <tersor/error.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace tersor::bench {
namespace {

constexpr std::size_t kMaxPerCall = std::size_t{1} << 28;  // values; MPI's counts are of type int
constexpr std::size_t kShort = std::size_t{1}
                               << 18;  // values; shorter sums are timed over more calls

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level;
}

/// The algorithm number for communicators made from now on. The tool interface sets the thread
/// level of the whole process, so Choice passes the current level.
class AlgorithmVariable {
 public:
  AlgorithmVariable() {
    int level = 0, index = 0, count = 0;
    MPI_T_init_thread(thread_level(), &level);
    known_ = MPI_T_cvar_get_index("coll_tuned_allreduce_algorithm", &index) == MPI_SUCCESS &&
             MPI_T_cvar_handle_alloc(index, nullptr, &handle_, &count) == MPI_SUCCESS && count == 1;
  }
  ~AlgorithmVariable() {
    if (known_) MPI_T_cvar_handle_free(&handle_);
    MPI_T_finalize();
  }
  AlgorithmVariable(const AlgorithmVariable&) = delete;
  AlgorithmVariable& operator=(const AlgorithmVariable&) = delete;

  /// True if neither user nor program has chosen an algorithm.
  bool is_unset() const {
    int chosen = 0;
    return known_ && MPI_T_cvar_read(handle_, &chosen) == MPI_SUCCESS && chosen == 0;
  }
  void set(int algorithm) { MPI_T_cvar_write(handle_, &algorithm); }

 private:
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
  bool known_ = false;
};

MPI_Comm duplicate_of_world() {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
  return communicator;
}

void sum(float* values, std::size_t count, MPI_Comm communicator) {
  for (std::size_t first = 0; first < count; first += kMaxPerCall)
    MPI_Allreduce(MPI_IN_PLACE, values + first,
                  static_cast<int>(std::min(kMaxPerCall, count - first)), MPI_FLOAT, MPI_SUM,
                  communicator);
}

/// The time of the slowest rank.
double seconds_of(std::vector<float>& values, MPI_Comm communicator) {
  const int calls = values.size() < kShort ? 20 : 1;
  sum(values.data(), values.size(), communicator);
  MPI_Barrier(communicator);
  double seconds = -MPI_Wtime();
  for (int call = 0; call < calls; ++call) sum(values.data(), values.size(), communicator);
  seconds += MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, communicator);
  return seconds;
}

}  // namespace

void LibrarySum::prepare() { setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 0); }

// Tries all algorithms except 0 and 2. Algorithm 0 is MPI's own choice among the other algorithms.
// Algorithm 2 (nonoverlapping) is a reduce and a broadcast, like algorithm 1.
LibrarySum::LibrarySum() : communicators_{duplicate_of_world()} {
  AlgorithmVariable choice;
  if (!choice.is_unset()) return;
  for (const int algorithm : {1, 3, 4, 5, 6}) {
    choice.set(algorithm);
    communicators_.push_back(duplicate_of_world());
  }
  choice.set(0);
}

LibrarySum::~LibrarySum() {
  for (MPI_Comm& communicator : communicators_) MPI_Comm_free(&communicator);
}

MPI_Comm LibrarySum::fastest_for(std::size_t count) {
  if (communicators_.size() == 1) return communicators_.front();
  const auto known = fastest_.find(count);
  if (known != fastest_.end()) return known->second;
  std::vector<float> values(count);
  double best = std::numeric_limits<double>::infinity();
  for (const MPI_Comm communicator : communicators_) {
    const double seconds = seconds_of(values, communicator);
    if (seconds < best) fastest_[count] = communicator;
    best = std::min(best, seconds);
  }
  return fastest_[count];
}

void LibrarySum::add(ValueSpan values) {
  if (values.dtype() != Dtype::kF32)
    throw InvalidArgumentError("MPI_Allreduce adds f32 values only");
  sum(reinterpret_cast<float*>(values.pointer()), values.count(), fastest_for(values.count()));
}

}  // namespace tersor::bench
