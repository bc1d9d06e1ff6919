// The rendezvous of ranks without a communicator, the watcher's time, and the lookup of the NCCL
// library.
#include "tests/nccl/nccl_ranks.h"

#include <tersor/inprocess.h>

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "comm/transport/nccl/library.h"
#include "comm/transport/nccl/watcher.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

class NcclMeeting : public ::testing::Test {
 protected:
  NcclMeeting() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~NcclMeeting() override { fs::remove_all(folder_); }

  /// Unique to this process.
  fs::path folder_ =
      fs::path(::testing::TempDir()) / ("tersor_nccl_meeting_" + std::to_string(getpid()));
};

/// A barrier on device memory. Works only if the ranks share a communicator.
void meet_on_device(Transport& transport) {
  const Stream stream;
  transport
      .barrier(
          {.name = "barrier", .timeout = 20s, .memory = Memory::kDevice, .stream = stream.view()})
      .wait_synchronize();
  stream.synchronize();
}

TEST_F(NcclMeeting, ThroughAFile) {
  WatchedNccl nccl;
  std::vector<std::thread> threads;
  for (const int rank : {2, 1, 0})
    threads.emplace_back([&, rank] {
      kernels::use_device(rank);
      const auto owned_transport =
          make_nccl_transport(NcclCommunicator::from_file(folder_ / "id", rank, 3, 20s));
      Transport& transport = *owned_transport;
      EXPECT_EQ(transport.rank(), rank);
      EXPECT_EQ(transport.ranks(), 3);
      meet_on_device(transport);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(nccl.open_communicators(), 0);
  EXPECT_FALSE(fs::exists(folder_ / "id.part"));
}

TEST_F(NcclMeeting, OverAnotherTransport) {
  WatchedNccl nccl;
  run_ranks(4, parse_link("none"), [](Transport& threads) {
    kernels::use_device(threads.rank());
    const auto owned_transport = make_nccl_transport(NcclCommunicator::over(threads, 20s));
    Transport& transport = *owned_transport;
    EXPECT_EQ(transport.rank(), threads.rank());
    meet_on_device(transport);
  });
  EXPECT_EQ(nccl.open_communicators(), 0);
}

// The test controls the clock, and no watcher thread runs.
TEST(NcclWatch, OperationIsLateAfterTimeoutSinceStart) {
  WatchedNccl nccl;
  nccl::Watcher watcher;
  nccl::Queue queue(watcher.fault());
  watcher.add(queue);
  const Stream stream;
  const Operation operation{.name = "allreduce", .timeout = 5s, .stream = stream.view()};
  const auto open = [&] {
    queue.open(operation, watcher.number_of("allreduce"));
    stream.synchronize();
  };
  const auto start = Clock::now();
  open();
  watcher.observe(start);
  watcher.observe(start + 4999ms);
  EXPECT_FALSE(watcher.fault().is_raised());
  queue.close(operation);
  stream.synchronize();
  watcher.observe(start + 6s);
  open();
  watcher.observe(start + 7s);
  watcher.observe(start + 11s);
  EXPECT_FALSE(watcher.fault().is_raised());
  watcher.observe(start + 12s);
  EXPECT_THROW(watcher.check("next"), TransportError);
  watcher.remove(queue);
}

TEST_F(NcclMeeting, FindsPythonPackageNextToPythonOnPath) {
  const fs::path packages = folder_ / "venv/lib/python3.11/site-packages/nvidia/nccl/lib";
  fs::create_directories(packages);
  fs::create_directories(folder_ / "venv/bin");
  fs::create_directories(folder_ / "empty");
  std::ofstream(folder_ / "venv/bin/python3") << "";
  std::ofstream(packages / "libnccl.so.2") << "";
  const std::string path = (folder_ / "empty").string() + ":" + (folder_ / "venv/bin").string();
  EXPECT_EQ(nccl::find_python_library(path), packages / "libnccl.so.2");
  EXPECT_EQ(nccl::find_python_library((folder_ / "empty").string()), std::nullopt);
}

TEST(NcclLibrary, FormatsVersionLikeNccl) {
  EXPECT_EQ(nccl::version_name(22'809), "2.28.9");
  EXPECT_EQ(nccl::version_name(21'403), "2.14.3");
  EXPECT_EQ(nccl::version_name(2'708), "2.7.8");
}

// The machine's NCCL library, if installed, answers without a GPU.
TEST(NcclLibrary, FindsInstalledLibrary) {
  void* installed = dlopen("libnccl.so.2", RTLD_NOW);
  if (installed == nullptr) GTEST_SKIP() << "no libnccl.so.2 where the loader looks";
  EXPECT_THAT(nccl_library(), StartsWith("NCCL 2."));
  EXPECT_THAT(nccl_library(), HasSubstr("libnccl.so.2"));
  ncclUniqueId id{};
  EXPECT_EQ(nccl::api().get_unique_id(&id), ncclSuccess);
}

}  // namespace
}  // namespace tersor::test
