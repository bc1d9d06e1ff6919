// Features of the MPI transport only.
#include <gtest/gtest.h>
#include <mpi.h>
#include <tersor/buffer.h>
#include <tersor/mpi.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/host/head.h"
#include "comm/transport/mpi/wire.h"
#include "tests/support/errors.h"

namespace tersor {
namespace {

int rank_count() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

bool multiple() {
  int level = 0;
  MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE;
}

TEST(MpiTransport, ReportsWhichThreadsMayCall) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  EXPECT_EQ(transport.traits().any_thread, multiple());
}

TEST(MpiTransport, RejectsOtherThreadsUnlessMpiAllowsThreads) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  if (transport.traits().any_thread) GTEST_SKIP() << "MPI lets all threads in";
  std::jthread([&] {
    test::expect_error<InvalidArgumentError>([&] { transport.progress(); }, "MPI_THREAD_MULTIPLE");
  }).join();
  transport.barrier({.name = "test"}).wait_synchronize();
}

TEST(MpiTransport, CreationOffMainThreadRequiresThreadMultiple) {
  if (multiple()) GTEST_SKIP() << "MPI lets all threads in";
  std::jthread([] {
    EXPECT_THROW(make_mpi_transport(MPI_COMM_WORLD), InvalidArgumentError);
  }).join();
}

// Poison from another thread is reported by the next call at the latest, with every thread level.
TEST(MpiTransport, AbortFromAnotherThreadReachesAllRanks) {
  const auto start = Clock::now();
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  if (transport.ranks() == 1) GTEST_SKIP() << "needs 2 ranks";
  if (transport.rank() == 0) std::jthread([&] { transport.abort("the disk is full"); }).join();
  test::expect_error<TransportError>(
      [&] {
        transport.barrier({.name = "test", .timeout = std::chrono::seconds(60)}).wait_synchronize();
      },
      "rank 0 gave up: the disk is full");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(MpiTransport, RejectsNullCommunicator) {
  EXPECT_THROW(make_mpi_transport(MPI_COMM_NULL), InvalidArgumentError);
}

TEST(MpiTransport, RejectsIntercommunicator) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks < 2) GTEST_SKIP() << "needs 2 ranks";
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 7, &between);
  EXPECT_THROW(make_mpi_transport(between), InvalidArgumentError);
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

TEST(MpiTransport, RejectsSecondSession) { EXPECT_THROW(MpiSession session, InvalidArgumentError); }

// The caller's own messages, with any tag and from any rank, never match the transport's messages.
TEST(MpiTransport, DoesNotMatchCallerMessages) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  const int ranks = transport.ranks(), rank = transport.rank();
  int got = -1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
  for (int round = 0; round < 5; ++round)
    transport.barrier({.name = "test", .tag = transport.reserve_tags(1)}).wait_synchronize();
  MPI_Send(&rank, 1, MPI_INT, (rank + 1) % ranks, 1, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT_EQ(got, (rank + ranks - 1) % ranks);
}

std::size_t available_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// More bytes than an int can count, between two ranks. The test checks every 4096th byte.
TEST(MpiTransport, TransfersMoreThanTwoGibibytes) {
  constexpr std::size_t kBytes = (std::size_t{1} << 31) + 12'345;
  if (available_bytes() < 4 * kBytes) GTEST_SKIP() << "needs 9 GB of memory";
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  if (transport.ranks() != 2) GTEST_SKIP() << "needs 2 ranks";
  if (transport.rank() == 0) {
    const auto buffer = std::make_shared<Buffer>(kBytes);
    for (std::size_t i = 0; i < kBytes; i += 4096) buffer->pointer()[i] = std::byte(i / 4096 % 251);
    transport.send({.name = "test", .keep_alive = buffer}, 1, buffer->span()).wait_synchronize();
  } else if (transport.rank() == 1) {
    Handle handle = transport.receive({.name = "test"}, 0, kBytes);
    handle.wait_synchronize();
    const ConstByteSpan bytes = handle.received(0);
    ASSERT_EQ(bytes.size(), kBytes);
    for (std::size_t i = 0; i < kBytes; i += 4096)
      ASSERT_EQ(bytes[i], std::byte(i / 4096 % 251)) << i;
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

/// Repeats the communication of a new wire. Returns the communicator of its messages.
MPI_Comm communicator_of_a_wire() {
  MPI_Comm own = MPI_COMM_NULL, host = MPI_COMM_NULL;
  int name = 0, ranks = 0;
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
  MPI_Comm_rank(own, &name);
  MPI_Comm_size(own, &ranks);
  MPI_Comm_split_type(own, MPI_COMM_TYPE_SHARED, name, MPI_INFO_NULL, &host);
  MPI_Bcast(&name, 1, MPI_INT, 0, host);
  MPI_Comm_free(&host);
  std::vector<int> names(static_cast<std::size_t>(ranks));
  MPI_Allgather(&name, 1, MPI_INT, names.data(), 1, MPI_INT, own);
  return own;
}

void expect_refusal(Wire& wire) {
  const auto until = Clock::now() + std::chrono::seconds(30);
  test::expect_error<TransportError>(
      [&] {
        while (Clock::now() < until) wire.poll();
      },
      "another version");
}

void receive_refused_ones(int count) {
  const auto wire = mpi::make_wire(MPI_COMM_WORLD);
  wire->start({.take = [](const Wire::Arrival&) { ADD_FAILURE() << "was taken"; }});
  for (int message = 0; message < count; ++message) {
    if (rank_count() > 1) expect_refusal(*wire);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  wire->end(Wire::Shutdown::kCoordinated);
}

// Headers announcing more or fewer bytes than the message contains, and a truncated header.
TEST(MpiTransport, RejectsMessagesWithWrongLength) {
  constexpr int kHeadBytes = sizeof(MessageHead);
  constexpr int kLengths[] = {kHeadBytes + 4, kHeadBytes + 12, kHeadBytes - 1};
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) return receive_refused_ones(std::size(kLengths));
  MPI_Comm own = communicator_of_a_wire();
  host::Head head;
  head.envelope.bytes = 8;
  std::array<MessageHead, 2> heads{to_message_head(head)};
  for (const int length : kLengths) {
    if (rank == 1) MPI_Send(&heads, length, MPI_BYTE, 0, 1, own);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Comm_free(&own);
}

TEST(MpiTransport, CreatesManyTransportsInSequence) {
  for (int round = 0; round < 50; ++round) {
    const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
    Transport& transport = *owned_transport;
    const auto channel = transport.channel();
    channel->barrier({.name = "test"}).wait_synchronize();
  }
}

}  // namespace
}  // namespace tersor
