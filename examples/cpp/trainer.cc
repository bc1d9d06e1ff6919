// Linear regression over MPI. Tersor replaces the gradient of each rank by the mean over all ranks.
#include <tersor/mpi.h>
#include <tersor/tersor.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace {
constexpr std::size_t kFeatures = 16384, kExamples = 64;
constexpr int kSteps = 50;
constexpr float kRate = 0.002f;

struct Data {
  std::vector<float> inputs, targets;  // kFeatures inputs per target
};

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

float dot(const float* input, const std::vector<float>& weight) {
  return std::inner_product(weight.begin(), weight.end(), input, 0.0f);
}

Data make_data(int rank) {
  const std::vector<float> truth = random_values(kFeatures, 1);
  Data data{random_values(kExamples * kFeatures, 2 + rank), std::vector<float>(kExamples)};
  for (std::size_t i = 0; i < kExamples; ++i) {
    data.targets[i] = dot(&data.inputs[i * kFeatures], truth);
  }
  return data;
}

// Writes the gradient of the mean squared error and returns the loss.
float backward(const Data& data, const std::vector<float>& weight, std::vector<float>& gradient) {
  std::ranges::fill(gradient, 0.0f);
  float loss = 0;
  for (std::size_t i = 0; i < kExamples; ++i) {
    const float* input = &data.inputs[i * kFeatures];
    const float error = dot(input, weight) - data.targets[i];
    loss += error * error / kExamples;
    for (std::size_t k = 0; k < kFeatures; ++k) gradient[k] += 2 * error * input[k] / kExamples;
  }
  return loss;
}

void train() {
  const auto transport = tersor::make_mpi_transport(MPI_COMM_WORLD);
  const bool prints = transport->rank() == 0;
  const Data data = make_data(transport->rank());
  std::vector<float> weight(kFeatures), gradient(kFeatures);
  tersor::GradientReducer reducer(*transport, {.codec = "int8"});
  reducer.add("weight", gradient, 128, kFeatures / 128);  // a vector is sent as bf16
  for (int step = 0; step <= kSteps; ++step) {
    const float loss = backward(data, weight, gradient);
    reducer.ready("weight");  // sent in the background
    reducer.wait();           // the gradient is now the mean over all ranks
    for (std::size_t k = 0; k < kFeatures; ++k) weight[k] -= kRate * gradient[k];
    if (prints && step % kSteps == 0) std::printf("step %d: loss %.3g\n", step, loss);
  }
  if (!prints) return;
  const auto total = reducer.statistics();
  const double instead = 2.0 * (transport->ranks() - 1) / transport->ranks() * total.gradient_bytes;
  std::printf("sent %.0f KiB instead of %.0f KiB\n", total.sent_bytes / 1024.0, instead / 1024);
}
}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  train();  // transport and reducer end before MPI_Finalize
  MPI_Finalize();
}
