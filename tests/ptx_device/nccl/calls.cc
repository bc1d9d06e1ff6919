// See calls.h. All messages of a group move concurrently on the stream's thread.
#include "tests/ptx_device/nccl/calls.h"

#include "tests/ptx_device/hooks.h"
#include "tests/ptx_device/nccl/messages.h"
#include "tests/ptx_device/nccl/sums.h"
#include "tests/ptx_device/runtime/marks.h"
#include "tests/ptx_device/runtime/queue.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace ptx::nccl {
namespace {

thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local const char* error_text = "";

/// Returns device memory. Other memory would be an error on a GPU and aborts.
char* memory_of(const void* pointer, std::size_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  char* memory = bytes_at(pointer, bytes);
  if (memory != nullptr) return memory;
  std::fprintf(stderr, "ptx-nccl: %s of %zu bytes at %p, which is no memory of the device\n", what,
               bytes, pointer);
  std::abort();
}

/// The calls of a group on one stream, during execution. Sent values are read when the stream
/// reaches the calls, independent of other work of the communicator.
class Batch {
 public:
  Batch(const ncclComm& comm, const std::vector<Call>& calls) : comm_(comm) {
    for (const Call& call : calls) add(call);
  }
  /// Returns false if stopped or revoked.
  bool move() { return nccl::move(comm_, messages_); }
  void finish();

 private:
  /// The result of a call, in device memory or in a buffer for sums.
  struct Result {
    Call call;
    char* values;
    std::vector<char>& marks;
  };

  std::size_t ranks() const { return static_cast<std::size_t>(comm_.ranks); }
  std::vector<char>& keep(std::size_t bytes) { return kept_.emplace_back(bytes); }
  std::vector<char>& values_of(const Call& call);
  std::vector<char>& marks_of(const Call& call);
  void add(const Call& call);
  void add_to_all(const Call& call, char* to);
  void reduce(const Result& result);

  const ncclComm& comm_;
  std::vector<Message> messages_;
  std::vector<Result> results_;
  std::deque<std::vector<char>> kept_;
};

std::vector<char>& Batch::values_of(const Call& call) {
  const char* from = memory_of(call.from, call.bytes, "send");
  return kept_.emplace_back(from, from + call.bytes);
}

/// The marks of a call's input. Memory without marks counts as written.
std::vector<char>& Batch::marks_of(const Call& call) {
  std::vector<char>& marks = kept_.emplace_back(marks_at(call.from, call.bytes));
  marks.resize(call.bytes, 1);
  return marks;
}

std::uint64_t number_of(const Call& call) {
  const bool alone = call.what == What::kSend || call.what == What::kReceive;
  return alone
             ? 0
             : static_cast<std::uint64_t>(call.what) | static_cast<std::uint64_t>(call.type) << 8 |
                   static_cast<std::uint64_t>(call.op) << 16;
}

void Batch::add_to_all(const Call& call, char* to) {
  std::vector<char>& own = values_of(call);
  std::vector<char>& marks = marks_of(call);
  std::vector<char>& all = keep(call.bytes * ranks());
  const Header header{number_of(call), call.bytes};
  for (int i = 0; i < comm_.ranks; ++i) {
    const std::size_t first = static_cast<std::size_t>(i) * call.bytes;
    messages_.push_back({i, Way::kSend, header, own.data(), marks.data()});
    messages_.push_back({i, Way::kReceive, header, to + first, all.data() + first});
  }
  results_.push_back({call, to, all});
}

void Batch::add(const Call& call) {
  const Header header{number_of(call), call.bytes};
  switch (call.what) {
    case What::kSend:
      messages_.push_back(
          {call.peer, Way::kSend, header, values_of(call).data(), marks_of(call).data()});
      return;
    case What::kReceive: {
      char* to = memory_of(call.to, call.bytes, "receive");
      results_.push_back({call, to, keep(call.bytes)});
      messages_.push_back({call.peer, Way::kReceive, header, to, results_.back().marks.data()});
      return;
    }
    case What::kAllGather:
      return add_to_all(call, memory_of(call.to, call.bytes * ranks(), "collective"));
    case What::kAllReduce:
      return add_to_all(call, keep(call.bytes * ranks()).data());
  }
}

void Batch::reduce(const Result& result) {
  const Call& call = result.call;
  for (std::size_t i = 1; i < ranks(); ++i)
    combine(result.values, result.values + i * call.bytes, call.count, call.type, call.op);
  for (std::size_t i = call.bytes; i < result.marks.size(); ++i)
    result.marks[i % call.bytes] &= result.marks[i];
  result.marks.resize(call.bytes);
  if (call.bytes == 0) return;
  std::memcpy(memory_of(call.to, call.bytes, "collective"), result.values, call.bytes);
}

void Batch::finish() {
  for (const Result& result : results_) {
    if (result.call.what == What::kAllReduce) reduce(result);
    if (!result.marks.empty()) set_marks(result.call.to, result.marks);
  }
}

void perform(const ncclComm& comm, const std::vector<Call>& calls, std::uint64_t turn) {
  if (comm.is_over()) return;
  Batch batch(comm, calls);
  if (comm.wait_for_turn(turn) && batch.move()) batch.finish();
}

/// A queued group. Lives until the group is done, or dropped because the device is broken.
struct Launch {
  explicit Launch(ncclComm& whose) : comm(whose), turn(comm.queued++) {}
  ~Launch() { ++comm.done; }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  ncclComm& comm;
  const std::uint64_t turn;
};

// Launches of one communicator keep the host's order across streams. Launches in graphs keep the
// graph's order.
bool queue_calls(const std::vector<Call>& calls) {
  ncclComm& comm = *calls.front().comm;
  if (is_captured(calls.front().stream)) {
    const auto replay = [calls, &comm] {
      ++comm.under_way;
      perform(comm, calls, 0);
      --comm.under_way;
    };
    return queue_on(calls.front().stream, replay, true);
  }
  const auto launch = std::make_shared<Launch>(comm);
  const auto work = [calls, launch] { perform(launch->comm, calls, launch->turn); };
  return queue_on(calls.front().stream, work, true);
}

/// Combines the calls on the same stream and communicator.
ncclResult_t submit() {
  std::vector<Call> left = std::exchange(group, {});
  const bool blocks = left.empty() || left.front().comm->blocking;
  while (!left.empty()) {
    const Call first = left.front();
    const auto others = std::stable_partition(left.begin(), left.end(), [&](const Call& call) {
      return call.comm == first.comm && call.stream == first.stream;
    });
    if (!queue_calls({left.begin(), others})) {
      error_text = "the stream takes no work";
      return ncclUnhandledCudaError;
    }
    left.erase(left.begin(), others);
  }
  return blocks ? ncclSuccess : ncclInProgress;
}

}  // namespace

void begin_group() { ++group_depth; }

ncclResult_t end_group() {
  if (group_depth == 0) return ncclInvalidUsage;
  return --group_depth == 0 ? submit() : ncclSuccess;
}

ncclResult_t enqueue(const Call& call) {
  const ncclComm* comm = call.comm;
  if (comm == nullptr || call.peer < 0 || call.peer >= comm->ranks) return ncclInvalidArgument;
  if (comm->state == ncclInProgress || comm->is_over()) return ncclInvalidUsage;
  group.push_back(call);
  return group_depth == 0 ? submit() : ncclSuccess;
}

const char* last_error_text() { return error_text; }

}  // namespace ptx::nccl
