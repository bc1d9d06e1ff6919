// trainer.cc with Tersor instead of MPI_Allreduce.
#include <mpi.h>
#include <tersor/mpi.h>
#include <tersor/tersor.h>

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
  const auto transport = tersor::make_mpi_transport(communicator);
  tersor::GradientReducer reducer(*transport, {.codec = "int8"});
  for (Layer& layer : layers) reducer.add(layer.name, layer.gradient, layer.rows, layer.columns);
  double first_loss = 0, loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    loss = 0;
    for (const Example& example : examples) loss += learn(layers, example);
    if (step == 0) first_loss = loss;
    for (Layer& layer : layers) reducer.ready(layer.name);
    reducer.wait();
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
