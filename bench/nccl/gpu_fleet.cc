// See gpu_fleet.h.

#include "bench/nccl/gpu_fleet.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>
#include <tersor/error.h>
#include <tersor/nccl.h>

#include <chrono>
#include <cstdio>

#include "bench/device/gpu.h"
#include "bench/processes/rank_processes.h"

namespace tersor::bench {
namespace {

constexpr std::chrono::seconds kToMeet{60};

/// NCCL's own functions, of the library that Tersor has loaded: a second one would not do.
class NcclFunctions {
 public:
  NcclFunctions() : library_(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD)) {
    find(all_reduce_, "ncclAllReduce");
    find(state_, "ncclCommGetAsyncError");
  }
  ~NcclFunctions() { dlclose(library_); }
  NcclFunctions(const NcclFunctions&) = delete;
  NcclFunctions& operator=(const NcclFunctions&) = delete;

  /// Queues the sum. Communicators that Tersor makes do not block: some calls go on inside NCCL.
  void sum(ValueSpan values, ncclDataType_t type, ncclComm_t communicator,
           StreamView stream) const {
    ncclResult_t result = all_reduce_(values.pointer(), values.pointer(), values.count(), type,
                                      ncclSum, communicator, cuda_stream(stream));
    while (result == ncclInProgress) state_(communicator, &result);
    if (result != ncclSuccess)
      throw Error(fmt::format("ncclAllReduce: error {}", static_cast<int>(result)));
  }

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    if (library_ != nullptr) function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) throw Error(fmt::format("no {} in the NCCL that is loaded", name));
  }

  void* library_;
  decltype(&ncclAllReduce) all_reduce_ = nullptr;
  decltype(&ncclCommGetAsyncError) state_ = nullptr;
};

ncclDataType_t nccl_type(Dtype dtype) {
  if (dtype == Dtype::kF32) return ncclFloat32;
  return dtype == Dtype::kBf16 ? ncclBfloat16 : ncclFloat16;
}

/// What all measurements of a process share, since a communicator takes seconds to make: one for
/// what is measured, one for the ranks' own messages, one for NCCL's sums.
struct Communicators {
  explicit Communicators(const RankPlace& place)
      : control(communicator(place, "")),
        measured(control.channel()),
        library(communicator(place, ".library")) {}

  static NcclCommunicator communicator(const RankPlace& place, const char* suffix) {
    return NcclCommunicator::from_file(place.id_file.string() + suffix, place.rank, place.ranks,
                                       kToMeet);
  }

  NcclTransport control;
  std::unique_ptr<Transport> measured;
  NcclCommunicator library;
};

class GpuRank final : public Rank {
 public:
  GpuRank(Communicators& communicators, const NcclFunctions& functions)
      : communicators_(communicators), functions_(functions) {}

  Transport& transport() override { return *communicators_.measured; }
  bool stores() override { return true; }
  void meet() override { gather_bytes(std::as_bytes(std::span(&kHere, 1))); }

  std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own) override {
    Transport& control = communicators_.control;
    Handle handle =
        control.all_gather({.name = "gathering", .tag = control.reserve_tags(1)}, own, own.size());
    handle.wait_synchronize();
    std::vector<std::vector<std::byte>> all;
    for (int rank = 0; rank < control.ranks(); ++rank) {
      const ConstByteSpan bytes = rank == control.rank() ? own : handle.received(rank);
      all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  }

  void library_sum(ValueSpan values, StreamView stream) override {
    functions_.sum(values, nccl_type(values.dtype()), communicators_.library.handle(), stream);
  }

 private:
  static constexpr std::uint64_t kHere = 1;

  Communicators& communicators_;
  const NcclFunctions& functions_;
};

class GpuFleet final : public Fleet {
 public:
  explicit GpuFleet(const RankPlace& place)
      : place_(place), devices_(device_count()), communicators_(place) {}

  int ranks() const override { return place_.ranks; }
  std::string text() const override {
    const std::string where = fmt::format("{} processes, {} of {}, {}", ranks(), devices_,
                                          current_gpu().name, nccl_library());
    const std::string note = sharing_note(ranks(), devices_, sharing_of_device());
    return note.empty() ? where : where + "; " + note;
  }
  bool leads() const override { return place_.rank == 0; }
  std::optional<int> only_rank() const override { return place_.rank; }
  std::optional<std::string> library() const override { return std::string(kNcclSum); }

  void run(const std::function<void(Rank&)>& body) override {
    GpuRank rank(communicators_, functions_);
    try {
      body(rank);
    } catch (const TransportError&) {
      throw;
    } catch (const std::exception& error) {
      communicators_.control.poison(error.what());  // the others would wait for us
      throw;
    }
  }

 private:
  RankPlace place_;
  int devices_;
  Communicators communicators_;
  NcclFunctions functions_;
};

}  // namespace

std::unique_ptr<Fleet> make_gpu_fleet(const FleetOptions& options, const RankPlace& place) {
  if (options.ranks.value_or(place.ranks) != place.ranks)
    throw InvalidArgument(fmt::format("--ranks {}, but {}={}: leave one of them out",
                                      *options.ranks, kRanksVariable, place.ranks));
  check_cuda(cudaSetDevice(device_of(place.rank, device_count())), "choosing a device");
  if (place.rank != 0 && std::freopen("/dev/null", "w", stdout) == nullptr)
    throw Error("cannot silence this rank's output");
  return std::make_unique<GpuFleet>(place);
}

Sharing sharing_of_device() {
  int device = 0, mps = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device), "asking for MPS");
  return mps != 0 ? Sharing::kAtOnce : Sharing::kInTurns;
}

std::string sharing_note(int ranks, int devices, Sharing sharing) {
  if (devices >= ranks) return "";
  return fmt::format("{} GPU{}, sockets over loopback: the wire is the loopback and the ranks {}",
                     devices == 1 ? "one" : std::to_string(devices), devices == 1 ? "" : "s",
                     sharing == Sharing::kAtOnce ? "compute at once, by MPS" : "take turns");
}

void run_rank_processes(int ranks, int devices) {
  RankProcesses processes({.words = own_command(), .ranks = ranks, .devices = devices});
  const std::vector<RankEnding> endings = processes.wait();
  for (std::size_t rank = 0; rank < endings.size(); ++rank)
    if (endings[rank].status != 0)
      throw Error(fmt::format("rank {} ended with exit status {}", rank, endings[rank].status));
}

}  // namespace tersor::bench
