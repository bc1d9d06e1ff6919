// Decodes all kernels in programs or PTX files and lists unsupported kernels. Usage:
// tersor_ptx_check FILE…    status 1 for an unsupported kernel, or without any kernels
#include "tests/ptx_device/machine/machine.h"
#include "tests/ptx_device/runtime/fat_binary.h"

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::string_view kFatBinary("\x50\xed\x55\xba\x01\x00\x10\x00", 8);
constexpr int kNewestDevice = 999;

struct Count {
  std::size_t kernels = 0, refused = 0;
};

std::vector<std::string> ptx_in(const std::string& file) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; (at = file.find(kFatBinary, at)) != std::string::npos; ++at)
    texts.push_back(ptx::best_ptx(file.data() + at, kNewestDevice));
  return texts.empty() ? std::vector{file} : texts;
}

void decode(const std::string& text, Count& count) {
  const ptx::Module module(text);
  ptx::Variables variables;
  for (const ptx::Variable& variable : module.globals) variables[variable.name] = 1024;
  for (const std::string& name : module.names()) {
    ++count.kernels;
    try {
      const auto kernel = ptx::decode(module.function(name), module, variables);
      std::printf("%6zu instructions, %5zu bytes a thread, %6zu shared, %s\n", kernel->code.size(),
                  kernel->register_bytes / ptx::kLanes, kernel->shared_bytes, name.c_str());
    } catch (const std::exception& error) {
      ++count.refused;
      std::printf("refused: %s\n", error.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Count count;
  for (int i = 1; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    for (const std::string& text : ptx_in({std::istreambuf_iterator<char>(in), {}}))
      decode(text, count);
  }
  std::printf("%zu kernels, %zu refused\n", count.kernels, count.refused);
  return count.refused != 0 || count.kernels == 0;
}
