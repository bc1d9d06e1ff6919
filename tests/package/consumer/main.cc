// A user's first program: choose a codec, and average a gradient over four ranks.
#include <tersor/tersor.h>

#include <cstdio>
#include <vector>

int main() {
  const auto codec = tersor::make_codec("int8");
  tersor::run_ranks(4, {}, [](tersor::Transport& transport) {
    std::vector<float> gradient(1000, static_cast<float>(transport.rank()));
    tersor::allreduce(transport, gradient,
                      {.codec = "int8", .reduction = tersor::Reduction::kMean});
    if (gradient.back() < 1.49f || gradient.back() > 1.51f) throw tersor::Error("wrong mean");
  });
  std::printf("%s: the mean of 0, 1, 2 and 3 arrived on every rank\n",
              codec->spec().text().c_str());
}
