
#include "bench/ranks/nccl/gpu_fleet.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>
#include <tersor/error.h>
#include <tersor/nccl.h>

#include <chrono>

#include "bench/common/gpu/gpu.h"

namespace tersor::bench {
namespace {

constexpr std::chrono::seconds kRendezvousTimeout{60};

/// Functions of the NCCL library loaded by Tersor. A second NCCL library would not work.
class NcclFunctions {
 public:
  NcclFunctions() : library_(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD)) {
    find(all_reduce_, "ncclAllReduce");
    find(state_, "ncclCommGetAsyncError");
  }
  ~NcclFunctions() { dlclose(library_); }
  NcclFunctions(const NcclFunctions&) = delete;
  NcclFunctions& operator=(const NcclFunctions&) = delete;

  /// Queues the sum. Tersor's communicators are nonblocking, so a call may continue inside NCCL
  /// after returning.
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

NcclCommunicator communicator(const RankIdentity& identity, const char* suffix) {
  return NcclCommunicator::from_file(identity.file.string() + suffix, identity.rank, identity.ranks,
                                     kRendezvousTimeout);
}

/// NCCL's sums, with a separate communicator.
Library library_of(const RankIdentity& identity) {
  const auto own = std::make_shared<NcclCommunicator>(communicator(identity, ".library"));
  const auto functions = std::make_shared<NcclFunctions>();
  return {.name = std::string(kNcclSum),
          .sum = [own, functions](ValueSpan values, StreamView stream) {
            functions->sum(values, nccl_type(values.dtype()), own->handle(), stream);
          }};
}

std::string text_of(const RankIdentity& identity) {
  const int devices = device_count();
  const std::string where = fmt::format("{} processes, {} of {}, {}", identity.ranks, devices,
                                        current_gpu().name, nccl_library());
  const std::string note = sharing_note(identity.ranks, devices, sharing_of_device());
  return note.empty() ? where : where + "; " + note;
}

}  // namespace

std::unique_ptr<Fleet> make_gpu_fleet(const FleetOptions& options, const RankIdentity& identity) {
  if (options.ranks.value_or(identity.ranks) != identity.ranks)
    throw InvalidArgumentError(fmt::format("--ranks {}, but {}={}: leave one of them out",
                                           *options.ranks, kRanksVariable, identity.ranks));
  check_cuda(cudaSetDevice(device_of(identity.rank, device_count())), "choosing a device");
  auto transport = make_nccl_transport(communicator(identity, ""));
  return std::make_unique<Fleet>(FleetParts{.transport = std::move(transport),
                                            .library = library_of(identity),
                                            .text = text_of(identity),
                                            .barriers = 1});
}

Sharing sharing_of_device() {
  int device = 0, mps = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device), "asking for MPS");
  return mps != 0 ? Sharing::kConcurrent : Sharing::kTimeSliced;
}

std::string sharing_note(int ranks, int devices, Sharing sharing) {
  if (devices >= ranks) return "";
  return fmt::format("{} GPU{}, sockets over loopback: the wire is the loopback and the ranks {}",
                     devices == 1 ? "one" : std::to_string(devices), devices == 1 ? "" : "s",
                     sharing == Sharing::kConcurrent ? "compute at once, by MPS" : "take turns");
}

}  // namespace tersor::bench
