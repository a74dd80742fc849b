// averaging_test.cc: training in streams, as on a GPU, equals training through the host bit for
// bit: weights, memory of scheme and optimizer, skipped steps, bytes; and each continues the
// other's checkpoint. Ranks are threads, and the device is the CPU. cuda.py has the rest.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/averaging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/engine.h"
#include "apps/train/placed.h"
#include "thinwire/comm/local.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"

namespace thinwire::train {
namespace {

constexpr std::uint64_t steps = 6, half = 3;
constexpr std::pair fault(std::uint64_t{2}, 1);  // step and rank of a NaN

struct Ending {
  State state;
  Report report;
  std::uint64_t skipped = 0;

  // In streams a skipped step runs all its rounds: there a scheme of several rounds sends more.
  void expect_equal(const Ending& other, bool one_round) const {
    EXPECT_TRUE(state == other.state);
    EXPECT_EQ(skipped, other.skipped);
    if (one_round) {
      EXPECT_EQ(report.payload_bytes, other.report.payload_bytes);
    }
    EXPECT_EQ(report.dense_bytes, other.report.dense_bytes);
  }
};

struct Task {
  const char* scheme;
  const char* optimizer = "sgd";
  bool nesterov = false;
  double clip = 0;
  const char* exchange = "auto";
  double fuse_mb = 0;
};

Settings settings_of(const Task& task, bool streams) {
  Settings settings;
  settings.data = "synthetic:1x8x8:10";
  settings.batch = 8;
  settings.bucket_mb = 0.02;  // several buckets
  settings.scheme = task.scheme;
  settings.optimizer = task.optimizer;
  settings.nesterov = task.nesterov;
  settings.clip = task.clip;
  settings.exchange = task.exchange;
  settings.fuse_mb = task.fuse_mb;
  settings.decay = 1e-2;
  settings.streams = streams;
  check(settings);
  return settings;
}

// Models draw their weights from torch's one generator, which ranks as threads would share.
void give_weights(Learner& learner) {
  for (const Bucket& bucket : learner.buckets()) {
    std::vector<float> weights(bucket.elements());
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = 0.1f * std::sin(static_cast<float>(i + bucket.id));
    copy_from_host(learner.weights_view(bucket.id), weights);
  }
}

Ending train(const Settings& settings, Group& group, std::uint64_t from, std::uint64_t to,
             const State* start = nullptr) {
  Place place;
  place.world = group.size();
  Learner learner(settings, group, {}, seat_of(settings));
  EXPECT_GT(learner.buckets().size(), 1u);
  give_weights(learner);
  const auto averaging =
      seat_of(settings) == Seat::model
          ? average_in_streams(settings, group, make_data_group(settings, place, -1), learner)
          : average_gradients(settings, group, learner);
  if (start != nullptr) {
    StateLoader loader(*start);
    averaging->visit_state(loader);
  }
  Ending ending;
  const auto phase = [](const char*, Learner::Time, Learner::Time) {};
  for (std::uint64_t step = from; step < to; ++step) {
    const auto submit = [&](std::uint16_t bucket) {
      TensorView first = learner.gradient_view(bucket);
      first.count = 1;
      if (fault == std::pair(step, group.rank()))
        copy_from_host(first, std::vector{std::numeric_limits<float>::quiet_NaN()});
      averaging->submit(bucket);
    };
    learner.compute(step, submit, phase);
    ending.skipped += averaging->finish(0.05f, phase).skipped ? 1 : 0;
  }
  ending.report = averaging->report();
  StateSaver saver(ending.state);
  averaging->visit_state(saver);
  for (const Bucket& bucket : learner.buckets()) {
    const std::span<const float> model = averaging->model(bucket.id);
    EXPECT_TRUE(std::ranges::equal(model, copy_to_host(learner.weights_view(bucket.id))));
  }
  return ending;
}

void expect_the_same(const Task& task, int ranks) {
  const Settings host = settings_of(task, false), streams = settings_of(task, true);
  ASSERT_EQ(seat_of(host), Seat::host);
  ASSERT_EQ(seat_of(streams), Seat::model);
  run_local(ranks, [&](Group& group) {
    const Ending expected = train(host, group, 0, steps);
    EXPECT_EQ(expected.skipped, ranks > fault.second ? 1u : 0u);
    const Config config = Config::parse(task.scheme);
    const Bucket probe{0, {{"w", 0, 4096, {64, 64}}}};
    const bool one_round = make_compressor(config, probe, {0, 1})->rounds() == 1;
    train(streams, group, 0, steps).expect_equal(expected, one_round);
    // A checkpoint of each, continued by the other.
    const State of_host = train(host, group, 0, half).state;
    const State of_streams = train(streams, group, 0, half).state;
    EXPECT_TRUE(of_streams == of_host);
    EXPECT_TRUE(train(streams, group, half, steps, &of_host).state == expected.state);
    EXPECT_TRUE(train(host, group, half, steps, &of_streams).state == expected.state);
  });
}

// How gtest prints a task; by default its bytes.
void PrintTo(const Task& task, std::ostream* out) {
  *out << task.scheme << ", " << task.optimizer << (task.nesterov ? ", nesterov" : "") << ", clip "
       << task.clip << ", " << task.exchange << ", fused " << task.fuse_mb;
}

class InStreams : public ::testing::TestWithParam<Task> {};

TEST_P(InStreams, HasTheBitsOfTheHost) {
  for (const int ranks : {1, 2}) expect_the_same(GetParam(), ranks);
}

INSTANTIATE_TEST_SUITE_P(, InStreams,
                         ::testing::Values(Task{"dense"}, Task{"dense", "sgd", true, 0.1},
                                           Task{"fp16", "adam"}, Task{"bf16", "adamw", false, 0.1},
                                           Task{"topk:density=0.05"},
                                           Task{"fp16", "sgd", false, 0, "auto", 0.1},
                                           Task{"topk:density=0.05", "sgd", false, 0, "split"},
                                           Task{"powersgd"}, Task{"dgc:density=0.05,warmup=2"},
                                           Task{"dgc:density=0.05", "sgd", true, 0.1}));

// The registry alone decides: a scheme that gets a CUDA version needs no change in the trainer.
TEST(Seat, FollowsTheRegistry) {
  for (const Scheme* scheme : schemes()) {
    Settings settings;
    settings.scheme = scheme->name;
    settings.device = "cuda";
    check(settings);
    const std::string why = why_on_host(settings);
    EXPECT_EQ(why.starts_with("scheme " + scheme->name + ": "), !scheme->cuda) << why;
    EXPECT_TRUE(scheme->cuda || seat_of(settings) == Seat::host);
  }
}

TEST(Seat, IsTheHostForSomeDelays) {
  const auto why = [](const char* delay, const char* correction) {
    Settings settings;
    settings.device = "cuda";
    settings.delay = delay;
    settings.correction = correction;
    check(settings);
    const std::string reason = why_on_host(settings);
    EXPECT_EQ(seat_of(settings) == Seat::model, reason.empty());
    return reason;
  };
  EXPECT_EQ(why("2", ""), has_cuda() ? "" : "this thinwire was built without nvcc");
  EXPECT_EQ(why("auto:8", ""), "a measured delay has no CUDA version");
  EXPECT_EQ(why("2", "published"), "the published correction has no CUDA version");
}

}  // namespace
}  // namespace thinwire::train
