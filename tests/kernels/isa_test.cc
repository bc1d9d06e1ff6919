// The choice of an instruction set: by name, by force, by the environment.

#include <tersor/error.h>
#include <tersor/isa.h>

#include "tests/kernels/reference.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tersor {
namespace {

TEST(Isa, NamesRoundTrip) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kNeon})
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_THROW(parse_isa("sse9"), InvalidArgumentError);
}

TEST(Isa, ChoosesBestUnlessForced) {
  const Isa before = current_isa();
  for (const Isa isa : available_isas()) {
    const reference::ForcedIsa forced(isa);
    EXPECT_EQ(current_isa(), isa);
  }
  EXPECT_EQ(current_isa(), before);
  if (std::getenv("TERSOR_ISA") == nullptr) {
    EXPECT_EQ(before, available_isas().back());
  }
}

TEST(Isa, RejectsUnavailableIsaAndListsAvailable) {
  const Isa foreign = available_isas().back() == Isa::kNeon ? Isa::kAvx2 : Isa::kNeon;
  try {
    force_isa(foreign);
    FAIL() << isa_name(foreign);
  } catch (const InvalidArgumentError& error) {
    const std::string message = error.what();
    for (const Isa isa : available_isas())
      EXPECT_NE(message.find(isa_name(isa)), std::string::npos) << message;
  }
}

// Runs in a separate process, because the environment is read once.
[[noreturn]] void print_choice(const char* name) {
  setenv("TERSOR_ISA", name, 1);
  try {
    std::fprintf(stderr, "chosen %s", isa_name(current_isa()).data());
  } catch (const InvalidArgumentError& error) {
    std::fprintf(stderr, "refused: %s", error.what());
  }
  std::exit(0);
}

TEST(IsaDeathTest, EnvironmentSelectsInstructionSet) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string slowest(isa_name(available_isas().front()));
  EXPECT_EXIT(print_choice(slowest.c_str()), ::testing::ExitedWithCode(0), "chosen " + slowest);
  EXPECT_EXIT(print_choice("sse9"), ::testing::ExitedWithCode(0), "refused: .*sse9");
}

}  // namespace
}  // namespace tersor
