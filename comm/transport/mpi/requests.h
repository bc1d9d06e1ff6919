// What is under way with MPI.
#pragma once

#include <mpi.h>
#include <tersor/network.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace tersor::mpi {

using Job = Wire::Job;

class Requests {
 public:
  /// Adds a request that was started for a job, which keeps the place of its status, if any.
  void add(std::shared_ptr<Job> job, MPI_Request request, MPI_Status* status = nullptr);

  /// Asks MPI once, and runs `done` of the jobs that are, which may poll again. True where a
  /// request was done.
  /// Throws TransportError where MPI reports an error.
  bool poll();

  /// True where nothing is under way but `expected` requests.
  bool idle_but(std::size_t expected) const { return requests_.size() <= expected; }

  /// Calls back all that is under way: only receives that no message meets any more.
  void cancel_all();

 private:
  int test_some();
  std::vector<std::shared_ptr<Job>> take_finished(int count);

  std::vector<MPI_Request> requests_;
  std::vector<std::shared_ptr<Job>> jobs_;  // of each
  std::vector<MPI_Status*> wanted_;         // by each: where its status belongs, or null
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace tersor::mpi
