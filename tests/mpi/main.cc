// Runs the tests in every process of mpirun. TERSOR_TEST_THREADS=single selects plain MPI_Init.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  const char* wanted = std::getenv("TERSOR_TEST_THREADS");
  if (wanted != nullptr && std::string_view(wanted) == "single") {
    MPI_Init(&argc, &argv);
  } else {
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  }
  ::testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) ::testing::GTEST_FLAG(brief) = true;  // other ranks print failures only
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}
