// Implements in_process.h, and the sound runs of verdict.h.
#include "tests/faults/in_process.h"

#include <tersor/inprocess.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "tests/faults/thread_count.h"
#include "tests/faults/verdict.h"

namespace tersor::faults {
namespace {

using namespace std::chrono_literals;

/// Counts finished ranks. Transports live until all ranks have finished.
class Gathering {
 public:
  explicit Gathering(int ranks, int stalled = 1) : ranks_(ranks), stalled_(stalled) {}

  void arrive() { ++arrived_; }
  void wait_for_all() const { wait_for(ranks_); }
  void wait_for_others() const { wait_for(ranks_ - stalled_); }

 private:
  void wait_for(int count) const {
    while (arrived_ < count) std::this_thread::sleep_for(1ms);
  }

  const int ranks_;
  const int stalled_;
  std::atomic<int> arrived_{0};
};

RankReport run_thread(const Scenario& scenario, std::unique_ptr<Transport> transport,
                      Gathering& gathering) {
  const Doom doom{.stall = [&] { gathering.wait_for_others(); }, .kill = {}, .suspend = {}};
  RankReport report = run_rank(scenario, *transport, doom);
  if (report.ending == Ending::kLeft) transport.reset();
  gathering.arrive();
  gathering.wait_for_all();
  return report;
}

/// Compares a result with the exact result.
void check_result(const Scenario& scenario, std::size_t step, int rank, const Values& result,
                  std::vector<std::string>& complaints) {
  if (scenario.steps[step].work == Work::kBarrier) return;
  const auto exact = exact_result(scenario, step, rank);
  double error = result.size() == exact.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(result.size(), exact.size()); ++i)
    error += (result[i] - exact[i]) * (result[i] - exact[i]);
  if (!(error <= error_bound(scenario, step)))
    complaints.push_back("without a fault, step " + std::to_string(step) + " of rank " +
                         std::to_string(rank) + " has a squared error of " + std::to_string(error) +
                         ", more than " + std::to_string(error_bound(scenario, step)));
}

std::vector<RankReport> run_in_process(const Scenario& scenario, const MakeWorld& make) {
  Gathering gathering(scenario.ranks);
  std::vector<RankReport> reports(static_cast<std::size_t>(scenario.ranks));
  std::vector<std::unique_ptr<Transport>> transports = make(scenario);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < reports.size(); ++rank)
    threads.emplace_back([&, rank] {
      reports[rank] = run_thread(scenario, std::move(transports[rank]), gathering);
    });
  threads.clear();
  return reports;
}

}  // namespace

std::vector<std::unique_ptr<Transport>> world_of_threads(const Scenario& scenario) {
  return make_inprocess_transports(scenario.ranks, parse_link(scenario.link));
}

std::vector<std::unique_ptr<Transport>> elastic_world(const ElasticPlan& plan) {
  return world_of_threads(Scenario{.ranks = plan.ranks});
}

Digests sound_digests(const Scenario& scenario, std::vector<std::string>& complaints) {
  const Scenario sound = scenario.sound();
  Digests digests(static_cast<std::size_t>(sound.ranks));
  std::vector<std::vector<std::string>> found(digests.size());
  run_ranks(sound.ranks, parse_link(sound.link), [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    Caller caller(sound, transport);
    for (std::size_t step = 0; step < sound.steps.size(); ++step) {
      const Values result = caller.call(step);
      check_result(sound, step, transport.rank(), result, found[rank]);
      digests[rank].push_back(digest_of(result));
    }
  });
  for (const auto& sentences : found)
    complaints.insert(complaints.end(), sentences.begin(), sentences.end());
  return digests;
}

std::vector<std::string> complaints_in_process(const Scenario& scenario, const MakeWorld& make) {
  const auto before = count_threads();
  const auto reports = run_in_process(scenario, make);
  std::vector<std::string> complaints;
  const Digests sound = sound_digests(scenario, complaints);
  const auto fault_at = reports[static_cast<std::size_t>(scenario.fault.rank)].fault_at;
  for (std::size_t rank = 0; rank < reports.size(); ++rank)
    for (std::string& complaint :
         judge(scenario, static_cast<int>(rank), reports[rank], sound[rank], fault_at))
      complaints.push_back(std::move(complaint));
  const auto left = threads_left(before);
  if (left > before) complaints.push_back(std::to_string(left - before) + " threads stay behind");
  return complaints;
}

// A lost rank disconnects at once, or stalls until all other ranks have finished.
std::vector<std::string> complaints_in_process(const ElasticPlan& plan,
                                               const MakeElasticWorld& make) {
  Gathering gathering(plan.ranks, static_cast<int>(plan.victims.size()));
  std::vector<std::optional<ElasticReport>> reports(static_cast<std::size_t>(plan.ranks));
  std::vector<std::unique_ptr<Transport>> transports = make();
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < reports.size(); ++rank)
    threads.emplace_back([&, rank] {
      const Doom doom{.stall = [&] { gathering.wait_for_others(); }, .kill = {}, .suspend = {}};
      reports[rank] = run_elastic(plan, *transports[rank], doom);
      if (plan.victim(static_cast<int>(rank)) != nullptr) transports[rank].reset();
      gathering.arrive();
      gathering.wait_for_all();
      transports[rank].reset();
    });
  threads.clear();
  return judge(plan, reports);
}

}  // namespace tersor::faults
