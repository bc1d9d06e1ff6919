
#include "bench/ranks/nccl/gpu_fleet.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <tersor/error.h>
#include <tersor/nccl.h>

#include <chrono>

#include "bench/common/gpu/gpu.h"
#include "comm/transport/nccl/api.h"
#include "kernels/device/device.h"

namespace tersor::bench {
namespace {

constexpr std::chrono::seconds kRendezvousTimeout{60};

ncclDataType_t nccl_type(Dtype dtype) {
  if (dtype == Dtype::kF32) return ncclFloat32;
  return dtype == Dtype::kBf16 ? ncclBfloat16 : ncclFloat16;
}

/// Queues the sum. Tersor's communicators are nonblocking, so a call may continue inside NCCL after
/// returning.
void sum(ValueSpan values, ncclComm_t communicator, StreamView stream) {
  const nccl::Api& api = nccl::api();
  ncclResult_t result =
      api.all_reduce(values.pointer(), values.pointer(), values.count(), nccl_type(values.dtype()),
                     ncclSum, communicator, stream_of(stream));
  while (result == ncclInProgress) api.comm_async_error(communicator, &result);
  nccl::check(result, "ncclAllReduce", communicator);
}

NcclCommunicator communicator(const RankIdentity& identity, const char* suffix) {
  return NcclCommunicator::from_file(identity.file.string() + suffix, identity.rank, identity.ranks,
                                     kRendezvousTimeout);
}

/// NCCL's sums, with a separate communicator.
Library library_of(const RankIdentity& identity) {
  const auto own = std::make_shared<NcclCommunicator>(communicator(identity, ".library"));
  return {.name = std::string(kNcclSum), .sum = [own](ValueSpan values, StreamView stream) {
            sum(values, own->handle(), stream);
          }};
}

std::string text_of(const RankIdentity& identity) {
  const int devices = device_count();
  const std::string where = fmt::format("{} processes, {} of {}, {}", identity.ranks, devices,
                                        kernels::device_name(), nccl_library());
  const std::string note = sharing_note(identity.ranks, devices, sharing_of_device());
  return note.empty() ? where : where + "; " + note;
}

}  // namespace

std::unique_ptr<Fleet> make_gpu_fleet(const FleetOptions& options, const RankIdentity& identity) {
  if (options.ranks.value_or(identity.ranks) != identity.ranks)
    throw InvalidArgumentError(fmt::format("--ranks {}, but {}={}: leave one of them out",
                                           *options.ranks, kRanksVariable, identity.ranks));
  kernels::use_device(device_of(identity.rank, device_count()));
  auto transport = make_nccl_transport(communicator(identity, ""));
  return std::make_unique<Fleet>(FleetParts{.transport = std::move(transport),
                                            .library = library_of(identity),
                                            .text = text_of(identity),
                                            .barriers = 1});
}

Sharing sharing_of_device() {
  int mps = 0;
  check_cuda(cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, kernels::current_device()),
             "asking for MPS");
  return mps != 0 ? Sharing::kConcurrent : Sharing::kTimeSliced;
}

std::string sharing_note(int ranks, int devices, Sharing sharing) {
  if (devices >= ranks) return "";
  return fmt::format("{} GPU{}, sockets over loopback: the wire is the loopback and the ranks {}",
                     devices == 1 ? "one" : std::to_string(devices), devices == 1 ? "" : "s",
                     sharing == Sharing::kConcurrent ? "compute at once, by MPS" : "take turns");
}

}  // namespace tersor::bench
