// A process for the sum of a gradient over several processes. usage: sum MEETING RANK RANKS
#include <tersor/tcp.h>
#include <tersor/tersor.h>

#include <cstdio>
#include <string>
#include <vector>

int main(int, char** words) {
  const int rank = std::stoi(words[2]), ranks = std::stoi(words[3]);
  const auto transport =
      tersor::make_tcp_transport(words[1], rank, ranks, {.address = "127.0.0.1"});
  std::vector<float> gradient(1000, 1.0f);
  tersor::allreduce(*transport, gradient, {.codec = "int8"});
  std::printf("rank %d: %.3f\n", rank, static_cast<double>(gradient.front()));
}
