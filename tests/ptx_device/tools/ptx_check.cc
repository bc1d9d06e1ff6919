// Decodes all kernels of files of PTX and says what this tool cannot do.
// usage: ptx_check FILE…
#include "tests/ptx_device/machine/machine.h"

#include <cstdio>
#include <fstream>
#include <iterator>

int main(int argc, char** argv) {
  std::size_t kernels = 0, refused = 0;
  for (int i = 1; i < argc; ++i) {
    std::ifstream in(argv[i]);
    const ptx::Module module(std::string(std::istreambuf_iterator<char>(in), {}));
    ptx::Variables variables;
    for (const ptx::Variable& variable : module.globals) variables[variable.name] = 1024;
    for (const std::string& name : module.names()) {
      ++kernels;
      try {
        const auto kernel = ptx::decode(module.function(name), module, variables);
        if (argc == 2)
          std::printf("%6zu instructions, %5zu bytes a thread, %6zu shared, %s\n",
                      kernel->code.size(), kernel->register_bytes / ptx::kLanes,
                      kernel->shared_bytes, kernel->name.c_str());
      } catch (const std::exception& error) {
        ++refused;
        std::printf("%s\n", error.what());
      }
    }
  }
  std::printf("%zu kernels, %zu refused\n", kernels, refused);
  return refused != 0;
}
