// registry_test.cc: the table of schemes: permanent ids, the properties of each scheme, the range
// of every option, and schemes of the user's program.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/registry.h"

#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/wire/frame.h"

namespace thinwire {
namespace {

using testing::error_of;

struct Row {
  const char* name;
  int id;
  // reducible, biased, feedback, stochastic, momentum, cuda, halves: a letter each, or a dash
  const char* is;
};

TEST(Registry, IdsAndPropertiesAreThese) {
  const Row rows[] = {
      {"dense", 1, "r----ch"},    {"fp16", 2, "rb---ch"},      {"bf16", 3, "rb---ch"},
      {"topk", 4, "-bf--c-"},     {"dgc", 5, "-bf-mc-"},       {"csc", 6, "rbf-mc-"},
      {"onebit", 7, "-bf-mc-"},   {"threshold", 8, "-bf--c-"}, {"terngrad", 9, "-b-s-c-"},
      {"qsgd", 10, "---s-c-"},    {"powersgd", 11, "rbf--c-"}, {"signum", 12, "-b--mc-"},
      {"efsign", 13, "-bf-mc-"},  {"atomo", 14, "---s---"},    {"randomk", 15, "r--s-c-"},
      {"natural", 16, "---s-c-"}, {"int8", 17, "-bf--c-"}};
  for (const Row& row : rows) {
    const Scheme& scheme = find_scheme(row.name);
    EXPECT_EQ(scheme.id, row.id) << row.name;
    std::string is = "-------";
    const bool flags[] = {scheme.reducible, scheme.biased, scheme.feedback, scheme.stochastic,
                          scheme.momentum,  scheme.cuda,   scheme.halves};
    for (std::size_t i = 0; i < 7; ++i) is[i] = flags[i] ? "rbfsmch"[i] : '-';
    EXPECT_EQ(is, row.is) << row.name;
  }
}

// What a configuration keeps and draws, if that differs from its scheme's default.
TEST(Registry, OptionsDecideWhatIsKept) {
  const auto is = [](const char* text) {
    const Config config = Config::parse(text);
    return std::string(keeps_residual(config) ? "r" : "-") + (keeps_momentum(config) ? "m" : "-") +
           (right_on_average(config) ? "u" : "-");
  };
  EXPECT_EQ(is("dense"), "---");
  EXPECT_EQ(is("topk"), "r--");
  EXPECT_EQ(is("dgc"), "rm-");
  EXPECT_EQ(is("signum"), "-m-");
  EXPECT_EQ(is("onebit"), "rm-");
  EXPECT_EQ(is("onebit:memory=residual"), "r--");
  EXPECT_EQ(is("onebit:memory=none"), "---");
  EXPECT_EQ(is("qsgd"), "--u");
  EXPECT_EQ(is("qsgd:memory=momentum"), "rmu");
  EXPECT_EQ(is("int8"), "r--");
  EXPECT_EQ(is("int8:rounding=random,memory=none"), "--u");
  EXPECT_EQ(is("terngrad"), "---");
  EXPECT_EQ(is("terngrad:clip=0"), "--u");
  EXPECT_EQ(is("randomk:memory=none"), "--u");
  // A scheme that has momentum by default says so.
  for (const Scheme* scheme : schemes()) {
    for (const Option& option : scheme->options) {
      if (option.name == "memory") {
        EXPECT_EQ(scheme->momentum, option.fallback == "momentum") << scheme->name;
      }
    }
  }
}

TEST(Registry, FramesCarryTheIdOfTheirScheme) {
  const Bucket bucket = Bucket::single(7, "w", 640);
  for (const Scheme* scheme : schemes()) {
    const auto compressor = make_compressor({scheme->name, {}}, bucket, {0, 1});
    auto g = testing::gradient(testing::Shape::normal, 640, 1);
    for (int round = 0; round < compressor->rounds(); ++round) {
      const Leg leg = compressor->leg(3, round);
      std::vector<std::byte> out(leg.bytes);
      const Turn turn{3, round, {}, 0};
      const Bytes room = leg.in_place ? std::as_writable_bytes(std::span(g)) : Bytes(out);
      const std::size_t sizes[] = {compressor->encode(turn, std::span(g), room)};
      const Inbox inbox{room, leg.bytes, sizes};
      if (leg.reduction == Reduction::gather) {
        FrameHeader header;
        ASSERT_TRUE(read_header(room, header).ok()) << scheme->name;
        EXPECT_EQ(header.scheme, scheme->id) << scheme->name;
        EXPECT_EQ(header.bucket, 7) << scheme->name;
        EXPECT_EQ(header.step, 3u) << scheme->name;
        EXPECT_EQ(header.elements, 640u) << scheme->name;
      }
      EXPECT_TRUE(compressor->decode(turn, inbox, std::span(g)).ok()) << scheme->name;
    }
  }
}

std::string error_with(const std::string& text) {
  const Bucket bucket = Bucket::single(0, "w", 64);
  return error_of([&] { make_compressor(Config::parse(text), bucket, {0, 1}); });
}

// The last values that are accepted, and the first that are not.
TEST(Registry, OptionsTakeTheirBoundsAndNoMore) {
  for (const char* good : {"topk:density=1",
                           "topk:warmup=0",
                           "topk:warmup=2147483647",
                           "dgc:momentum=0",
                           "dgc:clip=0",
                           "csc:chunk=1",
                           "csc:chunk=1073741824",
                           "csc:warmup=2147483647",
                           "csc:density=1",
                           "csc:momentum=0",
                           "randomk:block=1",
                           "randomk:block=1073741824",
                           "randomk:seed=2147483647",
                           "randomk:density=1",
                           "onebit:group=1",
                           "onebit:group=1048576",
                           "efsign:group=0",
                           "efsign:group=1048576",
                           "int8:block=64",
                           "int8:block=8192",
                           "int8:seed=9007199254740991",
                           "qsgd:bucket=64",
                           "qsgd:bucket=8192",
                           "qsgd:bits=1",
                           "qsgd:bits=8",
                           "terngrad:clip=0",
                           "terngrad:clip=999999",
                           "powersgd:rank=1",
                           "powersgd:rank=256",
                           "powersgd:rate=1000000",
                           "powersgd:warmup=1099511627776",
                           "powersgd:seed=1099511627776",
                           "atomo:rank=1000",
                           "atomo:seed=1099511627776",
                           "threshold:density=1",
                           "signum:momentum=0",
                           "natural:memory=momentum,momentum=0"})
    EXPECT_EQ(error_with(good), "") << good;
  for (const char* bad : {"topk:density=0",
                          "topk:density=1.01",
                          "topk:warmup=-1",
                          "topk:warmup=2147483648",
                          "dgc:momentum=1",
                          "dgc:momentum=-0.1",
                          "dgc:clip=-1",
                          "csc:chunk=0",
                          "csc:chunk=1073741825",
                          "csc:warmup=-1",
                          "csc:warmup=2147483648",
                          "csc:density=0",
                          "csc:density=1.01",
                          "csc:momentum=1",
                          "randomk:block=0",
                          "randomk:block=1073741825",
                          "randomk:seed=-1",
                          "randomk:seed=2147483648",
                          "randomk:density=0",
                          "randomk:density=1.01",
                          "onebit:group=0",
                          "onebit:group=1048577",
                          "efsign:group=-1",
                          "efsign:group=1048577",
                          "int8:block=0",
                          "int8:block=65",
                          "int8:block=96",
                          "int8:block=8256",
                          "int8:seed=-1",
                          "int8:seed=9007199254740992",
                          "qsgd:bucket=32",
                          "qsgd:bits=0",
                          "qsgd:bits=9",
                          "terngrad:clip=-1",
                          "terngrad:clip=1000000",
                          "powersgd:rank=0",
                          "powersgd:rank=257",
                          "powersgd:rate=0",
                          "powersgd:rate=1000001",
                          "powersgd:warmup=-1",
                          "powersgd:warmup=1099511627777",
                          "powersgd:seed=-1",
                          "powersgd:seed=1099511627777",
                          "atomo:rank=0",
                          "atomo:rank=1001",
                          "atomo:seed=-1",
                          "atomo:seed=1099511627777",
                          "threshold:density=0",
                          "threshold:density=1.01",
                          "signum:momentum=1",
                          "natural:memory=momentum,momentum=1",
                          "natural:memory=some",
                          "dgc:mask=maybe",
                          "dgc:mask=pool,nesterov=on"})
    EXPECT_NE(error_with(bad), "") << bad;
}

TEST(Registry, ASiteMustBeOneOfTheWorld) {
  const Bucket bucket = Bucket::single(0, "w", 64);
  const auto at = [&](int rank, int world) {
    return error_of([&] { make_compressor({"dense", {}}, bucket, {rank, world}); });
  };
  EXPECT_EQ(at(0, 1) + at(2, 3), "");
  EXPECT_NE(at(0, 0), "");
  EXPECT_NE(at(-1, 2), "");
  EXPECT_NE(at(2, 2).find("a rank from 0 to 1, got 2"), std::string::npos) << at(2, 2);
}

// A compressor that only reads other ranks' messages needs no memory.
TEST(Registry, ReadersKeepNothing) {
  Site reader{0, 1};
  reader.sends = false;
  for (const char* text :
       {"topk", "dgc", "onebit", "efsign", "threshold", "int8:memory=momentum",
        "qsgd:memory=residual", "natural:memory=momentum", "atomo:memory=residual"}) {
    State state;
    StateSaver saver(state);
    make_compressor(Config::parse(text), Bucket::single(0, "w", 64), reader)->visit_state(saver);
    EXPECT_FALSE(state.contains("w/v") || state.contains("w/u")) << text;
  }
}

TEST(Registry, ABucketHasNoGaps) {
  const Bucket gap{0, {{"w", 0, 5, {}}, {"bias", 6, 2, {}}}};
  EXPECT_NE(error_of([&] {
              make_compressor(Config::parse("dense"), gap, {0, 1});
            }).find("'bias': expected offset 5"),
            std::string::npos);
}

TEST(Registry, ASchemeOfOnesOwn) {
  static Scheme own = find_scheme("dense");
  const auto refused = [](const auto& change) {
    Scheme scheme = own;
    scheme.name = "own";
    scheme.id = 128;
    change(scheme);
    return error_of([&] { register_scheme(scheme); });
  };
  EXPECT_NE(refused([](Scheme& scheme) { scheme.name = ""; }).find("a name"), std::string::npos);
  EXPECT_NE(refused([](Scheme& scheme) { scheme.make = nullptr; }).find("a function"),
            std::string::npos);
  EXPECT_NE(refused([](Scheme& scheme) { scheme.id = 127; }).find("above 127"), std::string::npos);
  EXPECT_NE(refused([](Scheme& scheme) { scheme.name = "dgc"; }).find("there is 'dgc'"),
            std::string::npos);
  const std::size_t before = schemes().size();
  own.name = "own";
  own.id = 128;
  register_scheme(own);
  EXPECT_EQ(schemes().size(), before + 1);
  EXPECT_EQ(&find_scheme("own"), &own);
  EXPECT_NE(refused([](Scheme& scheme) { scheme.name = "other"; }).find("there is 'own'"),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire
