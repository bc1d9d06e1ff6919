// The MPI requests under way.
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
  /// Adds a started request of a job. The job owns the memory of `status`, if given.
  void add(std::shared_ptr<Job> job, MPI_Request request, MPI_Status* status = nullptr);

  /// Polls MPI once and calls `done` of each completed job; `done` may poll again. Returns true if
  /// a request completed. Throws TransportError on an MPI error.
  bool poll();

  /// True if at most `count` requests are under way.
  bool has_at_most(std::size_t count) const { return requests_.size() <= count; }

  /// Cancels all requests. Only receives without a matching message may be under way.
  void cancel_all();

 private:
  int test_some();
  std::vector<std::shared_ptr<Job>> take_finished(int count);

  std::vector<MPI_Request> requests_;
  std::vector<std::shared_ptr<Job>> jobs_;   // job of each request
  std::vector<MPI_Status*> status_targets_;  // status location of each request, or null
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace tersor::mpi
