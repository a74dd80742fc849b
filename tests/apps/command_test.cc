// command_test.cc: the thinwire command as users run it: rows, keys, rejected input and exit codes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/apps/command.h"
#include "thinwire/core/state.h"

namespace {

using nlohmann::json;
using thinwire::testing::contains;
using thinwire::testing::Outcome;
using thinwire::testing::read;
using thinwire::testing::write;

class Command : public thinwire::testing::CommandTest {
 protected:
  std::string example(const std::string& arguments = "") const {
    const Outcome outcome = run("inspect --example '" + path("frame.tw") + "' " + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return path("frame.tw");
  }
};

void expect_keys(const json& rows, const std::vector<std::string>& keys) {
  ASSERT_FALSE(rows.empty());
  for (const json& row : rows) {
    for (const std::string& key : keys) EXPECT_TRUE(row.contains(key)) << key << " in " << row;
  }
}

std::set<std::string> names(const json& rows) {
  std::set<std::string> result;
  for (const json& row : rows) result.insert(row.value("name", ""));
  return result;
}

TEST_F(Command, HelpsWithEveryVerb) {
  EXPECT_TRUE(contains(run("--help").out, "bench"));
  for (const char* verb : {"bench kernels", "bench wire", "bench schemes", "bench exchange",
                           "compare", "inspect", "schemes"}) {
    const Outcome outcome = run(std::string(verb) + " --help");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_TRUE(contains(outcome.out, "Example")) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "--json")) << outcome.out;
  }
}

TEST_F(Command, RefusesBadUsage) {
  expect_refused("", {"expected one of", "train", "see thinwire --help"});
  expect_refused("fly", {"'fly'", "expected one of bench, train"});
  expect_refused("bench",
                 {"thinwire: bench: expected one of kernels", "see thinwire bench --help"});
  expect_refused("schemes --wings", {"has no flag '--wings'", "see thinwire schemes --help"});
  expect_refused("schemes dense extra", {"thinwire: schemes does not expect 'extra'"});
  expect_refused("bench kernels --elements many", {"--elements", "many"});
  expect_refused("bench kernels --elements 0", {"--elements", "'0'"});
  expect_refused("bench kernels --elements 1.5", {"--elements", "1.5"});
  expect_refused("bench kernels --threads 5000", {"--threads", "1024"});
  expect_refused("bench kernels --only nothing", {"nothing", "dgc"});
  expect_refused("bench wire --density 2", {"--density: expected a number from 1e-09 to 1", "'2'"});
  for (const char* number : {"nan", "inf", "-1", "1e999", "0.5x", ""}) {
    expect_refused("bench wire --density '" + std::string(number) + "'", {"--density", "expected"});
    expect_refused("bench kernels --seconds '" + std::string(number) + "'", {"--seconds"});
  }
}

TEST_F(Command, SaysWhatWasMeant) {
  expect_refused("trian --model mlp", {"did you mean 'train'? See thinwire --help"});
  expect_refused("bench kernles", {"did you mean 'kernels'? See thinwire bench --help"});
  expect_refused("schemes --jsno x", {"'--jsno'; did you mean '--json'?"});
  expect_refused("schemes --markdwon=1", {"'--markdwon'; did you mean '--markdown'?"});
  expect_refused("schemes powrsgd", {"'powrsgd'", "did you mean 'powersgd'?"});
  expect_refused("bench exchange --schemes dgc:desnity=0.1", {"did you mean 'density'?"});
  expect_refused("bench exchange --schemes dgc:density=2", {"density"});
  EXPECT_FALSE(contains(run("fly").err, "mean"));
  EXPECT_FALSE(contains(run("schemes --wings").err, "mean"));
  EXPECT_FALSE(contains(run("bench exchange --schemes dgc:density=2").err, "mean"));
}

// The check happens before any work and leaves no file behind.
TEST_F(Command, ProbesWhereItWillWrite) {
  expect_refused("schemes --json /no/such/folder/f.json",
                 {"--json", "no folder '/no/such/folder'"});
  expect_refused("schemes --json '" + path("") + "'", {"--json", "the folder"});
  std::filesystem::create_directory(path("folder"));
  expect_refused("schemes --json '" + path("folder") + "'", {"--json", "the folder"});
  expect_refused("schemes --json /proc/thinwire.json",
                 {"--json: cannot write '/proc/thinwire.json'"});
  write(path("kept"), "as it was");
  expect_refused("schemes --wings --json '" + path("kept") + "'", {"--wings"});
  EXPECT_EQ(read(path("kept")), "as it was");
  run("schemes --json '" + path("rows.json") + "'");
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(path("")))
    left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"err", "folder", "kept", "out", "rows.json"}));
}

TEST_F(Command, AResultThatNobodyCanReadIsAFailure) {
  for (const char* verb : {"schemes", "--help", "schemes --help", "--version",
                           "bench kernels --elements 1000 --seconds 0 --only norm"}) {
    const Outcome outcome = run(std::string(verb) + " >/dev/full");
    EXPECT_EQ(outcome.code, 1) << verb;
    EXPECT_TRUE(contains(outcome.err, "standard output")) << verb << outcome.err;
  }
}

TEST_F(Command, RefusesBadSchemesAndLinks) {
  expect_refused("bench exchange --schemes dense,wings", {"wings", "dgc"});
  expect_refused("bench exchange --schemes dgc:density=2", {"dgc", "density", "2"});
  expect_refused("bench exchange --schemes dgc:feathers=2", {"dgc", "feathers"});
  expect_refused("bench exchange --link quick", {"--link", "quick"});
  expect_refused("bench exchange --ranks 1000", {"--ranks", "1000"});
  expect_refused("bench exchange --exchange ring", {"--exchange", "ring", "split"});
  expect_refused("bench exchange --exchange split --schemes fp16",
                 {"'fp16' travels by all-reduce"});
  expect_refused("bench exchange --exchange server:2 --ranks 2", {"at least 3 ranks"});
}

TEST_F(Command, BenchKernels) {
  const json result = rows("bench kernels --elements 1000,300000 --threads 1,2 --seconds 0");
  expect_keys(result, {"name", "elements", "threads", "seconds", "floor_seconds", "ratio",
                       "ratio_low", "ratio_high", "ns_per_element", "floor"});
  EXPECT_EQ(result.size(), names(result).size() * 4);
  for (const json& row : result) {
    EXPECT_GT(row["seconds"], 0);
    EXPECT_LE(row["ratio_low"], row["ratio"]);
    EXPECT_LE(row["ratio"], row["ratio_high"]);
    EXPECT_EQ(row["threads"] == 2, row.contains("speedup"));
  }
  for (const char* name : {"dgc", "dgc-nesterov", "topk", "scale", "norm", "sgd", "to-fp16",
                           "from-bf16", "wire-log4", "wire-sign"}) {
    EXPECT_TRUE(names(result).contains(name)) << name;
  }
}

// The step is measured as it runs in training: about the right number pass the threshold.
TEST_F(Command, BenchKernelsKeepsTheDensity) {
  const json result = rows("bench kernels --elements 300000 --threads 1 --seconds 0.05 --only dgc");
  expect_keys(result, {"survivors"});
  for (const json& row : result) {
    EXPECT_GT(row["survivors"], 200) << row;
    EXPECT_LT(row["survivors"], 500) << row;
  }
}

TEST_F(Command, BenchKernelsSaysTheShareOfTheWire) {
  const json result = rows("bench kernels --elements 300000 --threads 1 --seconds 0 --only wire");
  expect_keys(result, {"share", "frame_bytes", "survivors"});
}

TEST_F(Command, BenchWire) {
  const json result = rows("bench wire --elements 100000 --density 0.001,0.1 --seconds 0");
  expect_keys(result, {"name", "source", "elements", "survivors", "ratio", "floor"});
  std::size_t indices = 0, frames = 0, times = 0;
  for (const json& row : result) {
    EXPECT_EQ(row["survivors"], row["density"].get<double>() < 0.01 ? 100 : 10000);
    indices += row.contains("bits_per_index") ? 1 : 0;
    frames += row.contains("bits_per_survivor") ? 1 : 0;
    times += row.contains("ns_per_survivor") ? 1 : 0;
    // No coder beats the entropy of uniform supports by more than chance.
    if (row.contains("bound_bits")) {
      EXPECT_GT(row["ratio"], 0.97) << row;
    }
  }
  EXPECT_EQ(indices, 2u * 4u);
  EXPECT_EQ(frames, 2u * 6u);
  EXPECT_EQ(times, 2u * 16u);
}

TEST_F(Command, BenchSchemes) {
  const json result = rows("bench schemes --elements 3000 --ranks 2 --seconds 0");
  expect_keys(result, {"name", "part", "elements", "seconds", "floor_seconds", "ratio", "ratio_low",
                       "ratio_high", "ns_per_element", "floor_bytes_per_element"});
  const json registry = rows("schemes");
  EXPECT_EQ(names(result), names(registry));
  EXPECT_EQ(result.size(), 2 * registry.size() - 1);  // dense encodes nothing
  for (const json& row : result) {
    EXPECT_GT(row["floor_bytes_per_element"], 0) << row;
    EXPECT_EQ(row["part"] == "encode", row.contains("bits_per_element"));
  }
  const json one = rows("bench schemes --elements 3000 --seconds 0 --schemes qsgd:bits=3,norm=max");
  EXPECT_EQ(one.size(), 2u);
  EXPECT_NEAR(one[0]["bits_per_element"], 4.1, 0.1);
  expect_refused("bench schemes --only nothing", {"nothing", "dgc"});
}

std::string words(const std::vector<std::uint32_t>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_F(Command, BenchWireReadsSupports) {
  write(path("s.u32"), words({1000, 3, 5, 6, 999}));
  const json result = rows("bench wire --seconds 0 --support '" + path("s.u32") + "'");
  expect_keys(result, {"name", "survivors"});
  for (const json& row : result) {
    EXPECT_EQ(row["source"], "s.u32");
    EXPECT_EQ(row["elements"], 1000);
    EXPECT_EQ(row["survivors"], 3);
  }
}

TEST_F(Command, BenchWireRefusesBadSupports) {
  const std::string file = "bench wire --support '" + path("s.u32") + "'";
  expect_refused(file, {"--support: there is no file", "s.u32"});
  write(path("s.u32"), "");
  expect_refused(file, {"s.u32", "at least one"});
  write(path("s.u32"), words({1000, 4, 5, 6, 999}));
  expect_refused(file, {"expected 4", "got 3"});
  write(path("s.u32"), words({1000, 3, 5, 5, 999}));
  expect_refused(file, {"ascending", "5"});
  write(path("s.u32"), words({1000, 1, 1000}));
  expect_refused(file, {"below 1000", "got 1000"});
  write(path("s.u32"), words({1000, 1, 1}) + "x");
  expect_refused(file, {"multiple of 4", "13"});
}

TEST_F(Command, BenchExchange) {
  const json result = rows("bench exchange --ranks 1,3 --elements 5000 --buckets 3 --steps 2");
  expect_keys(result, {"name", "engine", "ranks", "seconds", "floor_seconds", "ratio", "floor",
                       "payload_bytes", "dense_bytes", "sent_bytes", "received_bytes",
                       "compression", "encode_seconds", "wait_seconds", "decode_seconds"});
  const json registry = rows("schemes");
  EXPECT_EQ(names(result), names(registry));
  EXPECT_EQ(result.size(), 2 * registry.size());
  for (const json& row : result) {
    EXPECT_EQ(row["emulated"], false);
    EXPECT_EQ(row["dense_bytes"], 20000);
    if (row["name"] == "dense") {
      EXPECT_EQ(row["payload_bytes"], 20000);
    }
    if (row["name"] == "bf16") {
      EXPECT_EQ(row["compression"], 2);
    }
    if (row["name"] == "dgc") {
      EXPECT_GT(row["compression"], 50);
    }
  }
}

// Payload per step divided by time per step never exceeds the link, whatever the scheme.
TEST_F(Command, BenchExchangeKeepsToTheLink) {
  const json result = rows("bench exchange --ranks 2 --elements 20000 --steps 2 --link 50mbit,1ms");
  EXPECT_EQ(names(result), names(rows("schemes")));
  for (const json& row : result) {
    const double pace = 8 * row["payload_bytes"].get<double>() / row["seconds"].get<double>();
    EXPECT_GT(pace, 0) << row;
    EXPECT_LT(pace, 50e6) << row;
  }
}

TEST_F(Command, BenchExchangeByStripes) {
  const json result =
      rows("bench exchange --exchange server:1 --ranks 3 --elements 5000 --buckets 3 --steps 2");
  EXPECT_TRUE(names(result).contains("dgc"));
  EXPECT_FALSE(names(result).contains("dense"));
  for (const json& row : result) EXPECT_EQ(row["exchange"], "server:1");
}

TEST_F(Command, BenchExchangeLabelsTheEmulatedLink) {
  const std::string verb =
      "bench exchange --ranks 2 --elements 1000 --steps 2 --schemes dense,dgc:density=0.01,"
      "values=sign --link 1gbit,1ms";
  const json result = rows(verb);
  EXPECT_EQ(result.size(), 2u);
  for (const json& row : result) {
    EXPECT_EQ(row["emulated"], true);
    EXPECT_GT(row["seconds"], 1e-3);
    EXPECT_TRUE(contains(row["engine"], "emulated")) << row;
  }
  EXPECT_TRUE(contains(run(verb).out, "emulated"));
}

TEST_F(Command, InspectsAnExample) {
  const std::string frame = example("--scheme dgc:density=0.01,values=bf16 --elements 20000");
  const Outcome outcome = run("inspect '" + frame + "'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"dgc", "bf16", "20000", "crc_right", "true", "bits_per_survivor"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part << " in\n" << outcome.out;
  }
  const json chunks = rows("inspect '" + frame + "'");
  expect_keys(chunks,
              {"first", "extent", "count", "coder", "parameter", "index_bytes", "value_bytes"});
  std::size_t elements = 0, survivors = 0;
  for (const json& chunk : chunks) {
    EXPECT_EQ(chunk["first"], elements);
    elements += chunk["extent"].get<std::size_t>();
    survivors += chunk["count"].get<std::size_t>();
  }
  EXPECT_EQ(elements, 20000u);
  EXPECT_GE(survivors, 160u);
  EXPECT_LE(survivors, 258u);
}

TEST_F(Command, InspectRefusesEveryFlippedBit) {
  const std::string frame = example("--scheme dgc:density=0.01 --elements 500");
  const std::string good = read(frame);
  ASSERT_LT(good.size(), 100u);
  for (std::size_t bit = 0; bit < 8 * good.size(); bit += 5) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    write(path("bad.tw"), bad);
    expect_refused("inspect '" + path("bad.tw") + "'", {"bad.tw"});
  }
}

TEST_F(Command, InspectSaysWhatIsWrong) {
  const std::string frame = example();
  const std::string good = read(frame);
  const std::string bad = "inspect '" + path("bad.tw") + "'";
  expect_refused(bad, {"there is no file", "bad.tw"});
  write(path("bad.tw"), "");
  expect_refused(bad, {"ends after 0 bytes", "20"});
  write(path("bad.tw"), good.substr(0, good.size() - 1));
  expect_refused(bad, {"ends after " + std::to_string(good.size() - 1) + " bytes"});
  write(path("bad.tw"), "no frame at all, just some text");
  expect_refused(bad, {"0x74 0x77", "0x6e 0x6f"});
  std::string damaged = good;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write(path("bad.tw"), damaged);
  expect_refused(bad, {"checksum", "expected 0x"});
  expect_refused("inspect '" + std::filesystem::path(frame).parent_path().string() + "'",
                 {"folder"});
  expect_refused("inspect", {"FRAME", "--example", "see thinwire inspect --help"});
  expect_refused("inspect --example '" + path("f") + "' --scheme dense", {"dense", "no frames"});
}

TEST_F(Command, InspectsACheckpoint) {
  thinwire::State state;
  state["settings/model=mlp"] = {};
  state["settings/rank=3"] = {};
  state["training/step"].number = 57;
  state["a/weights"] = {thinwire::Share::replicated, {3, 0}, 0, true};
  state["b/weights"] = {thinwire::Share::replicated, {4}, 0, true};
  thinwire::save_file(path("state.rank3"), state);
  const std::string verb = "inspect '" + path("state.rank3") + "'";
  const json kinds = rows(verb);
  ASSERT_EQ(kinds.size(), 1u);
  EXPECT_EQ(kinds[0]["kind"], "weights");
  EXPECT_EQ(kinds[0]["elements"], 3);
  EXPECT_EQ(kinds[0]["norm"], 5);
  const json head = json::parse(read(path("rows.json")))["checkpoint"];
  EXPECT_EQ(head["step"], 57);
  EXPECT_EQ(head["model"], "mlp");
  EXPECT_EQ(head["rank"], "3");
  EXPECT_TRUE(contains(run(verb).out, "--resume"));
  const std::string good = read(path("state.rank3"));
  write(path("state.rank3"), good.substr(0, good.size() - 1));
  expect_refused(verb, {"state.rank3", "damaged checkpoint"});
}

TEST_F(Command, Schemes) {
  const json result = rows("schemes");
  expect_keys(result, {"name", "id", "bits", "reducible", "biased", "feedback", "stochastic",
                       "paper", "options"});
  for (const char* name : {"dense", "fp16", "bf16", "topk", "dgc"}) {
    EXPECT_TRUE(names(result).contains(name)) << name;
  }
}

TEST_F(Command, ShowsOneScheme) {
  const Outcome outcome = run("schemes dgc");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"dgc: ", "Lin", "density", "warmup", "feedback          yes"})
    EXPECT_TRUE(contains(outcome.out, part)) << part << " in\n" << outcome.out;
  EXPECT_FALSE(contains(outcome.out, "powersgd"));
  EXPECT_TRUE(contains(run("schemes dense").out, "no options"));
  const json one = rows("schemes dgc");
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0]["name"], "dgc");
}

// docs/schemes.md embeds the table, so a changed registry must show there too.
TEST_F(Command, SchemesAreDocumented) {
  const std::string begin = "<!-- schemes -->\n", end = "<!-- /schemes -->";
  const std::string text = read(THINWIRE_SOURCE_DIR "/docs/schemes.md");
  const std::size_t from = text.find(begin), to = text.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(text.substr(from + begin.size(), to - from - begin.size()),
            run("schemes --markdown").out)
      << "put the output of `thinwire schemes --markdown` between the markers of docs/schemes.md";
}

}  // namespace
