// A data-parallel trainer over MPI without Tersor. trainer_tersor.cc is the version with Tersor.
// difference_test.py compares the difference with the README.
#include <mpi.h>

#include <perceptron.h>

#include <cstdio>
#include <vector>

namespace {

// Prints the loss of the first and the last step over all ranks.
void train(MPI_Comm communicator) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &ranks);
  const std::vector<Example> examples = make_examples(rank);
  std::vector<Layer> layers = {{"hidden", kHidden, kInputs, 2}, {"output", kClasses, kHidden, 3}};
  double first_loss = 0, loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    loss = 0;
    for (const Example& example : examples) loss += learn(layers, example);
    if (step == 0) first_loss = loss;
    for (Layer& layer : layers) {
      MPI_Allreduce(MPI_IN_PLACE, layer.gradient.data(), static_cast<int>(layer.gradient.size()),
                    MPI_FLOAT, MPI_SUM, communicator);
      for (float& value : layer.gradient) value /= static_cast<float>(ranks);
    }
    for (Layer& layer : layers) layer.descend();
  }
  first_loss = mean_over_ranks(first_loss, communicator);
  loss = mean_over_ranks(loss, communicator);
  if (rank != 0) return;
  std::printf("%d ranks: loss %.6f, after %d steps %.6f\n", ranks, first_loss, kSteps, loss);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  train(MPI_COMM_WORLD);
  MPI_Finalize();
}
