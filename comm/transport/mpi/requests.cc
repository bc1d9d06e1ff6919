#include "comm/transport/mpi/requests.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "comm/transport/mpi/library.h"

namespace tersor::mpi {

void Requests::add(std::shared_ptr<Job> job, MPI_Request request, MPI_Status* status) {
  ++job->open;
  requests_.push_back(request);
  jobs_.push_back(std::move(job));
  status_targets_.push_back(status);
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

// Moves the last request into each completed entry, from the back, to lose none.
std::vector<std::shared_ptr<Job>> Requests::take_finished(int count) {
  std::vector<std::shared_ptr<Job>> finished(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < finished.size(); ++i) {
    const auto index = static_cast<std::size_t>(indices_[i]);
    if (status_targets_[index] != nullptr) *status_targets_[index] = statuses_[i];
    finished[i] = std::move(jobs_[index]);
  }
  std::sort(indices_.begin(), indices_.begin() + count, std::greater<>());
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    requests_[index] = requests_.back();
    jobs_[index] = std::move(jobs_.back());
    status_targets_[index] = status_targets_.back();
    requests_.pop_back();
    jobs_.pop_back();
    status_targets_.pop_back();
  }
  return finished;
}

// Open MPI checks requests before making progress: the next call reports new completions.
bool Requests::poll() {
  if (requests_.empty()) return false;
  const int count = test_some();
  if (count == 0) return false;
  std::exception_ptr error;  // the first error; remaining jobs still complete
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
  status_targets_.clear();
}

}  // namespace tersor::mpi
