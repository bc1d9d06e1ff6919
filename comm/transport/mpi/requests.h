// What is under way with MPI, who owns its memory, and what happens when it is done.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "comm/transport/host/postman.h"

namespace tersor::mpi {

/// A message, or the rest of one, in one or more requests. Owns the bytes until the last is done.
struct Job {
  host::Block memory;
  std::shared_ptr<const void> keep_alive;
  host::Batch* batch = nullptr;                                  ///< that counts it, or null
  std::function<void(Job& job, const MPI_Status& status)> done;  ///< may be empty
  std::size_t open = 0;                                          ///< requests
};

class Requests {
 public:
  /// Adds a request that was started for a job.
  void add(std::shared_ptr<Job> job, MPI_Request request);

  /// Asks MPI once, and runs `done` of the jobs that are, which may poll again. True where a
  /// request was done.
  /// Throws TransportError where MPI reports an error.
  bool poll();

  /// Nobody counts on the batch any more.
  void forget(const host::Batch& batch);

  /// True where nothing is under way but `expected` requests.
  bool idle_but(std::size_t expected) const { return requests_.size() <= expected; }

  /// Calls back all that is under way: only receives that no message meets any more.
  void cancel_all();

 private:
  struct Finished {
    std::shared_ptr<Job> job;
    MPI_Status status;
  };

  int test_some();
  std::vector<Finished> take_finished(int count);

  std::vector<MPI_Request> requests_;
  std::vector<std::shared_ptr<Job>> jobs_;  // of each
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace tersor::mpi
