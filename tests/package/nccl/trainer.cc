// A trainer around the lines of docs/how-to/gpu.md that reduce gradients. Only compiled.
#include <tersor/nccl.h>
#include <tersor/tersor.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

struct Parameter {
  std::string name;
  std::size_t rows, columns;
  tersor::ValueSpan gradient;
};

struct Network {
  const std::vector<Parameter>& parameters() const { return all; }
  void backward(const std::function<void(const Parameter&)>& ready) {
    for (const Parameter& parameter : all) ready(parameter);
  }
  std::vector<Parameter> all;
};

void step(Network& network, const std::string& codec, const std::string& id_file, int rank,
          int ranks, tersor::StreamView stream) {
  constexpr std::chrono::seconds kToMeet{60};
  // The lines of the page stand here.
}
