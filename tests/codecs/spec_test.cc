// Specs, options and the registry: accepted specs, refused specs, and the lists in error texts.

#include "tests/support/codec_harness.h"
#include "tests/support/specs.h"

#include <tersor/codec.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

namespace tersor::test {
namespace {

std::string error_with(const std::string& spec) {
  return error_of<InvalidArgumentError>([&] { make_codec(spec); });
}

bool tells(const std::string& error, const std::string& words) {
  return error.find(words) != std::string::npos;
}

TEST(Spec, ParsesNamesOptionsAndFeedback) {
  const CodecSpec spec = parse_spec("topk:density=0.01,values=bf16+ef");
  EXPECT_EQ(spec.name, "topk");
  EXPECT_EQ(spec.options, (decltype(spec.options){{"density", "0.01"}, {"values", "bf16"}}));
  EXPECT_EQ(spec.feedback, Feedback::kResidual);
  EXPECT_EQ(spec.text(), "topk:density=0.01,values=bf16+ef");
  EXPECT_EQ(parse_spec("int8").text(), "int8");
  EXPECT_EQ(parse_spec("int8").feedback, Feedback::kNone);
  EXPECT_EQ(parse_spec("not_known_here+ef").name, "not_known_here");
}

TEST(Spec, MalformedSpecErrorShowsGrammar) {
  for (const char* text : {"", ":", "+ef", "int8:", "int8:rounding", "int8:=nearest", "int8:a=",
                           "int8:a=b,", "int8:a=b,,c=d", "int8+", "int8+fe", "int8+ef+ef",
                           "int8+ef:a=b", "in t8", "int8:a=b,a=c", "int8:a=b=c", "topk:x=1e+0"}) {
    const std::string error = error_of<InvalidArgumentError>([&] { parse_spec(text); });
    EXPECT_TRUE(tells(error, "name[:key=value[,key=value]...][+ef]")) << text << ": " << error;
  }
}

TEST(Spec, CanonicalizesSpecText) {
  const std::map<std::string, std::string> expected = {
      {"none", "none"},
      {"bf16+ef", "bf16+ef"},
      {"bf16:rounding=nearest+ef", "bf16+ef"},
      {"bf16:rounding=stochastic", "bf16:rounding=stochastic"},
      {"int8:rounding=nearest", "int8"},
      {"int8:rounding=stochastic+ef", "int8:rounding=stochastic+ef"},
      {"topk", "topk:density=0.01"},
      {"topk:density=0.0100+ef", "topk:density=0.01+ef"},
      {"topk:density=1e-05", "topk:density=1e-05"},
      {"topk:values=f32,density=0.5", "topk:density=0.5"},
      {"topk:values=int8,density=1", "topk:density=1,values=int8"},
      {"hadamard:bits=2", "hadamard"},
      {"mxfp8:elements=e4m3", "mxfp8"},
      {"mxfp8:elements=e5m2+ef", "mxfp8:elements=e5m2+ef"},
      {"hadamard:bits=1+ef", "hadamard:bits=1+ef"},
      {"blocktopk", "blocktopk:density=0.01"},
      {"blocktopk:values=int4,density=0.1", "blocktopk:density=0.1,values=int4"},
  };
  for (const auto& [text, canonical] : expected)
    EXPECT_EQ(make_codec(text)->spec().text(), canonical);
}

TEST(Spec, UnknownCodecErrorListsCodecs) {
  const std::string error = error_with("int9");
  EXPECT_TRUE(tells(error, "\"int9\"")) << error;
  EXPECT_TRUE(tells(
      error,
      "none, bf16, f16, int8, int4, mxfp8, nvfp4, topk, intsum, hadamard, blocktopk, lowrank"))
      << error;
}

TEST(Spec, InvalidOptionErrorListsOptions) {
  EXPECT_TRUE(tells(error_with("int8:round=nearest"), "rounding=nearest|stochastic (nearest)"));
  EXPECT_TRUE(tells(error_with("int8:rounding=up"), "rounding=nearest|stochastic (nearest)"));
  EXPECT_TRUE(tells(error_with("bf16:rounding=up"), "rounding=nearest|stochastic (nearest)"));
  EXPECT_TRUE(tells(error_with("f16:rounding=stochastic"), "it takes no options"));
  EXPECT_TRUE(tells(error_with("intsum:bits=9"), "bits=8|16|32 (8)"));
  EXPECT_TRUE(tells(error_with("intsum:width=8"), "bits=8|16|32 (8), rounding=nearest|stochastic"));
  EXPECT_TRUE(tells(error_with("intsum:width=8"), "scale=(1e-30, 1e30] (none)"));
  for (const char* scale : {"0", "-1", "nan", "inf", "1e-30", "1e31"})
    EXPECT_TRUE(tells(error_with(std::string("intsum:scale=") + scale), "at most 1e30")) << scale;
  EXPECT_EQ(make_codec("intsum:scale=0.10")->spec().text(), "intsum:scale=0.1");
  EXPECT_EQ(make_codec("intsum")->spec().text(), "intsum");
  EXPECT_EQ(make_codec("intsum:lanes=16+ef")->spec().text(), "intsum:bits=16+ef");
  EXPECT_TRUE(tells(error_with("intsum:bits=8,lanes=16"), "bits cannot be \"16\""));
  for (const char* scale : {"100000", "1e30"}) {
    const std::string spec = make_codec(std::string("intsum:scale=") + scale)->spec().text();
    EXPECT_EQ(make_codec(spec)->spec().text(), spec);
  }
  EXPECT_TRUE(tells(error_with("hadamard:bits=5"), "\"5\"; it takes bits=1|2|3|4 (2)"));
  EXPECT_TRUE(tells(error_with("mxfp8:elements=e3m4"), "elements=e4m3|e5m2 (e4m3)"));
  EXPECT_TRUE(tells(error_with("nvfp4:elements=e2m1"), "it takes no options"));
  EXPECT_TRUE(tells(error_with("none:density=1"), "it takes no options"));
  EXPECT_TRUE(tells(error_with("topk:k=5"), "density=(0, 1] (0.01), values=f32|bf16|int8 (f32)"));
  EXPECT_TRUE(
      tells(error_with("blocktopk:k=5"), "density=(0, 0.25] (0.01), values=sign|int4|bf16 (sign)"));
}

TEST(Spec, RejectsDensitiesOutsideRange) {
  for (const char* density : {"0", "-0.1", "1.0001", "nan", "inf", "x", "0.1x", "1e999", "0x1"})
    EXPECT_TRUE(tells(error_with(std::string("topk:density=") + density), "above 0, at most 1"))
        << density;
  EXPECT_EQ(error_with("topk:density=1e-300"), "");
}

TEST(Registry, CodecsHaveUniqueIdsAndSummaries) {
  std::set<std::uint16_t> ids;
  for (const CodecInfo& info : codecs()) {
    SCOPED_TRACE(info.name);
    EXPECT_TRUE(ids.insert(info.id).second) << "used twice: " << info.id;
    EXPECT_FALSE(info.summary.empty());
    EXPECT_EQ(make_codec(info.name)->id(), info.id);
    EXPECT_TRUE(make_codec(std::string(info.name) + "+ef")->has_feedback());
  }
}

TEST(Registry, ExampleSpecsCoverEveryOptionValue) {
  const auto examples_of = [](std::string_view name) {
    const auto infos = codecs();
    return example_specs(*std::ranges::find(infos, name, &CodecInfo::name));
  };
  using Specs = std::vector<std::string>;
  EXPECT_EQ(examples_of("none"), Specs{"none"});
  EXPECT_EQ(examples_of("hadamard"),
            (Specs{"hadamard", "hadamard:bits=1", "hadamard:bits=3", "hadamard:bits=4"}));
  EXPECT_EQ(examples_of("blocktopk"),
            (Specs{"blocktopk:density=0.01", "blocktopk:density=0.25",
                   "blocktopk:density=0.075,values=int4", "blocktopk:density=0.025,values=bf16",
                   "blocktopk:density=0.00075", "blocktopk:density=2.5e-05,values=int4"}));
  EXPECT_EQ(examples_of("intsum"),
            (Specs{"intsum", "intsum:bits=16", "intsum:bits=32", "intsum:rounding=stochastic",
                   "intsum:bits=16,rounding=stochastic", "intsum:bits=32,rounding=stochastic"}));
  EXPECT_EQ(examples_of("topk"),
            (Specs{"topk:density=0.01", "topk:density=1", "topk:density=0.3,values=bf16",
                   "topk:density=0.1,values=int8", "topk:density=0.003",
                   "topk:density=1e-04,values=bf16"}));
}

TEST(Registry, IdsNeverChange) {
  const std::map<std::string, std::uint16_t> expected = {
      {"none", 1},     {"bf16", 2},   {"f16", 3},      {"int8", 4},      {"int4", 5},
      {"topk", 6},     {"intsum", 7}, {"hadamard", 8}, {"blocktopk", 9}, {"lowrank", 10},
      {"entropy", 11}, {"mxfp8", 12}, {"nvfp4", 13}};
  for (const auto& [name, id] : expected) EXPECT_EQ(make_codec(name)->id(), id) << name;
}

TEST(Registry, RejectsUnknownInstructionSet) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process without a chosen instruction set
  EXPECT_EXIT(
      {
        setenv("TERSOR_ISA", "sse9", 1);
        force_isa(std::nullopt);
        std::exit(tells(error_with("int8"), "sse9") ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tersor::test
