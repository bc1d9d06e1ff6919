// Implements requests.h.
#include "comm/transport/mpi/requests.h"

#include <exception>
#include <utility>

#include "comm/transport/mpi/library.h"

namespace tersor::mpi {

void Requests::add(std::shared_ptr<Job> job, MPI_Request request, MPI_Status* status) {
  ++job->open;
  requests_.push_back(request);
  jobs_.push_back(std::move(job));
  wanted_.push_back(status);
}

int Requests::test_some() {
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS)
    for (int i = 0; i < count; ++i)
      check(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "MPI_Testsome");
  check(code, "MPI_Testsome");
  return count == MPI_UNDEFINED ? 0 : count;
}

std::vector<std::shared_ptr<Job>> Requests::take_finished(int count) {
  std::vector<std::shared_ptr<Job>> finished;
  finished.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    if (wanted_[index] != nullptr) *wanted_[index] = statuses_[static_cast<std::size_t>(i)];
    finished.push_back(std::move(jobs_[index]));
  }
  std::size_t kept = 0;
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    if (jobs_[index] == nullptr) continue;
    requests_[kept] = requests_[index];
    jobs_[kept] = std::exchange(jobs_[index], nullptr);
    wanted_[kept] = wanted_[index];
    ++kept;
  }
  requests_.resize(kept);
  jobs_.resize(kept);
  wanted_.resize(kept);
  return finished;
}

// Open MPI looks first and moves things after: what that brought is seen by a second look.
bool Requests::poll() {
  if (requests_.empty()) return false;
  int count = test_some();
  if (count == 0) count = test_some();
  if (count == 0) return false;
  std::exception_ptr error;  // the first; the others are done all the same
  for (const auto& job : take_finished(count)) try {
      if (--job->open == 0 && job->done) job->done(*job);
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  if (error != nullptr) std::rethrow_exception(error);
  return true;
}

void Requests::cancel_all() {
  for (MPI_Request& request : requests_) {
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  requests_.clear();
  jobs_.clear();
  wanted_.clear();
}

}  // namespace tersor::mpi
