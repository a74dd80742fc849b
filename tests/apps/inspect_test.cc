// inspect_test.cc: `thinwire inspect --model` as users run it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/apps/command.h"

namespace {

using nlohmann::json;
using thinwire::testing::contains;
using thinwire::testing::Outcome;
using thinwire::testing::read;

class Inspect : public thinwire::testing::CommandTest {
 protected:
  json document(const std::string& arguments) const {
    const Outcome outcome =
        run("inspect --threads 1 " + arguments + " --json '" + path("i.json") + "'");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(read(path("i.json")), nullptr, false);
  }
};

const std::string tiny = "--model mlp --data synthetic:1x4x4:3 --batch 4 ";

TEST_F(Inspect, RefusesBadFlags) {
  expect_refused("inspect --data digits", {"--data", "--model"});
  expect_refused("inspect frame.tw " + tiny, {"FRAME", "--model"});
  expect_refused("inspect --example f.tw " + tiny, {"FRAME", "--model"});
  expect_refused("inspect --steps 0 " + tiny, {"--steps"});
}

#if THINWIRE_TRAINS

TEST_F(Inspect, RefusesWhatCannotBeTrained) {
  expect_refused("inspect --schemes dgc,wings " + tiny, {"wings", "dgc"});
  expect_refused("inspect --model wings --data synthetic", {"wings", "resnet20"});
  expect_refused("inspect --model lstm --data synthetic", {"lstm", "text"});
  expect_refused("inspect --model mlp --data synthetic --batch 20000", {"--batch", "20000"});
  expect_refused("inspect --lr 1e38 --schemes dense " + tiny, {"not finite", "--lr"});
}

TEST_F(Inspect, CountsEveryLayerOnce) {
  const json seen = document(tiny + "--steps 2 --schemes dense");
  ASSERT_EQ(seen["layers"].size(), 6u);
  EXPECT_EQ(seen["layers"][0]["shape"], "300x16");
  EXPECT_EQ(seen["elements"], 17 * 300 + 301 * 300 + 301 * 3);
  std::size_t elements = 0;
  double energy = 0;
  for (const json& layer : seen["layers"]) {
    elements += layer["elements"].get<std::size_t>();
    energy += layer["energy"].get<double>();
    EXPECT_GT(layer["top_0.1"], 0) << layer;
    EXPECT_LE(layer["top_0.1"], layer["top_1"]) << layer;
    EXPECT_LE(layer["top_1"], layer["top_10"]) << layer;
    EXPECT_LE(layer["top_10"], 1) << layer;
  }
  EXPECT_EQ(elements, seen["elements"]);
  EXPECT_NEAR(energy, 1, 1e-9);
  EXPECT_EQ(seen["whole"]["elements"], elements);
}

TEST_F(Inspect, MeasuresEverySchemeOfTheRegistry) {
  const json registry = rows("schemes");
  const json seen = document(tiny + "--steps 2");
  ASSERT_EQ(seen["rows"].size(), registry.size());
  for (std::size_t i = 0; i < registry.size(); ++i) {
    EXPECT_EQ(seen["rows"][i]["scheme"], registry[i]["name"]);
    EXPECT_GT(seen["rows"][i]["bytes"], 0);
  }
  EXPECT_EQ(seen["rows"][0]["ratio"], 1);
  EXPECT_EQ(seen["rows"][0]["bits_per_element"], 32);
  EXPECT_EQ(seen["rows"][1]["ratio"], 2);
  // How much of the first gradient arrives, how fast, and the final choice.
  const std::set<std::string> losing = {"signum", "terngrad"};  // biased, and without feedback
  for (const json& row : seen["rows"]) {
    EXPECT_GE(row["error"], 0) << row;
    EXPECT_LT(row["error"], 1) << row;
    EXPECT_GT(row["exchange_seconds"], 0) << row;
    EXPECT_EQ(losing.contains(row["scheme"]), !row.contains("gradient_seconds")) << row;
  }
  EXPECT_EQ(seen["rows"][0]["error"], 0);
  EXPECT_EQ(seen["link"], "1gbit,1ms");
  EXPECT_TRUE(contains(read(path("out")), "Over 1gbit,1ms with 4 workers")) << read(path("out"));
}

// Without --data, the way a user types it first.
TEST_F(Inspect, KnowsDataForEveryModel) {
  const json seen = document("--model cnn --steps 1 --batch 2 --schemes dgc --link 10mbit,20ms");
  EXPECT_EQ(seen["data"], "synthetic:1x28x28:10");
  EXPECT_EQ(seen["take"], "dgc");
  EXPECT_TRUE(contains(seen["verdict"], "Over 10mbit,20ms")) << seen["verdict"];
  expect_refused("inspect --model cnn --link thin", {"--link", "thin"});
  expect_refused("inspect --model cnn --lr nan", {"--lr", "above 0", "'nan'"});
  expect_refused("inspect --model resnet05", {"resnet05", "did you mean 'resnet50'?"});
}

TEST_F(Inspect, TakesTheMeanOfTheSecondHalf) {
  const json row = document(tiny + "--steps 5 --schemes dgc:density=0.01,warmup=2")["rows"][0];
  const auto bytes = row["bytes_by_step"].get<std::vector<double>>();
  const auto sent = row["sent_by_step"].get<std::vector<double>>();
  ASSERT_EQ(bytes.size(), 5u);
  ASSERT_EQ(sent.size(), 5u);
  EXPECT_DOUBLE_EQ(row["bytes"], (bytes[2] + bytes[3] + bytes[4]) / 3);
  const double quota = 0.01 * 96'303;
  EXPECT_GT(sent[0], 10 * quota);  // a quarter of all elements, from the warm-up
  for (std::size_t i = 2; i < 5; ++i) {
    EXPECT_GT(sent[i], 0.7 * quota);
    EXPECT_LT(sent[i], 1.3 * quota);
  }
}

// All schemes see one training, which none of them affects.
TEST_F(Inspect, ShowsEverySchemeTheSameGradients) {
  const json alone = document(tiny + "--steps 4 --schemes dgc:density=0.01");
  const json beside = document(tiny + "--steps 4 --schemes dense,topk,dgc:density=0.01,fp16");
  EXPECT_EQ(alone["layers"], beside["layers"]);
  for (const char* key : {"bytes_by_step", "sent_by_step", "error"})
    EXPECT_EQ(alone["rows"][0][key], beside["rows"][2][key]) << key;
  rows("train --workers 1 --threads 1 --report-every 1 --steps 4 " + tiny);
  const json trained = json::parse(read(path("rows.json")), nullptr, false);
  EXPECT_DOUBLE_EQ(trained["rows"][3]["loss"], beside["loss"]);
}

TEST_F(Inspect, GroupsManyLayers) {
  const json seen =
      document("--model resnet20 --data synthetic:3x8x8:4 --batch 2 --steps 1 --schemes dense");
  ASSERT_EQ(seen["layers"].size(), 59u);
  const std::string out = read(path("out"));
  EXPECT_TRUE(contains(out, "19 smaller, as one")) << out;
  std::size_t shown = 0;
  for (const json& layer : seen["layers"]) {
    shown += contains(out, "\n" + layer["layer"].get<std::string>() + " ") ? 1 : 0;
  }
  EXPECT_EQ(shown, 40u) << out;
}

#else

TEST_F(Inspect, SaysThatThereIsNoTorch) {
  expect_refused("inspect " + tiny, {"libtorch", "docs/dependencies.md"});
}

#endif

}  // namespace
