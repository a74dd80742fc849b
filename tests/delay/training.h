// training.h: a small deterministic training, and the laws of delayed averaging over any group.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/gradients.h"
#include "thinwire/delay/published.h"
#include "thinwire/thinwire.h"

namespace thinwire::testing {

using Values = std::vector<std::vector<float>>;

inline Arrays views(Values& values) { return Arrays(values.begin(), values.end()); }

// Momentum SGD towards a target that each worker sees with its own noise.
struct Task {
  std::vector<Bucket> buckets = {
      Bucket{0, {{"conv.weight", 0, 4097, {17, 241}}, {"conv.bias", 4097, 17, {}}}},
      Bucket{1, {{"head", 0, 130, {10, 13}}}}, Bucket{2, {}}};
  Values weights, velocity, gradients, moments, replayed;
  std::vector<double> applied;  // the optimizer's updates of the first bucket
  int rank;
  float momentum = 0.9f, rate = 0.002f;

  explicit Task(const Group& group) : rank(group.rank()) {
    for (const Bucket& bucket : buckets)
      weights.push_back(gradient(Shape::normal, bucket.elements(), bucket.id));
    for (Values* zeros : {&velocity, &gradients, &moments, &replayed}) {
      for (const Bucket& bucket : buckets) zeros->emplace_back(bucket.elements());
    }
  }

  void compute(std::uint64_t step) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const auto noise = gradient(Shape::normal, weights[b].size(),
                                  step * 1000 + b * 100 + static_cast<std::uint64_t>(rank) + 1);
      for (std::size_t i = 0; i < weights[b].size(); ++i)
        gradients[b][i] = weights[b][i] + noise[i];
    }
  }

  void update() {
    const std::vector<float> before = weights[0];
    for (std::size_t b = 0; b < buckets.size(); ++b) move(gradients[b], velocity[b], weights[b]);
    applied.resize(before.size());
    for (std::size_t i = 0; i < before.size(); ++i)
      applied[i] += static_cast<double>(weights[0][i]) - before[i];
  }

  void step(std::uint64_t number) {
    compute(number);
    update();
  }

  // Second moments, as Adam has them; some fall to 0, where a correction makes them negative.
  void follow_moments(std::uint64_t number) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t i = 0; i < moments[b].size(); ++i) {
        moments[b][i] = 0.9f * moments[b][i] + 0.1f * (gradients[b][i] * gradients[b][i]);
        if ((number + i) % 5 == 0) moments[b][i] = 0;
      }
    }
  }

  // Whether this worker takes no part in the round that ends with this step.
  bool misses(std::uint64_t number) const {
    return (number + static_cast<std::uint64_t>(rank)) % 11 == 3;
  }

  void visit_state(StateVisitor& visitor) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      visit_by_parameter(visitor, buckets[b], "velocity", velocity[b], Share::local);
      visit_by_parameter(visitor, buckets[b], "replayed", replayed[b], Share::local);
      visit_by_parameter(visitor, buckets[b], "squares", moments[b], Share::local);
    }
  }

  void move(std::span<const float> g, std::vector<float>& v, std::span<float> w) const {
    for (std::size_t i = 0; i < w.size(); ++i) {
      v[i] = momentum * v[i] + g[i];
      w[i] -= rate * v[i];
    }
  }
};

struct Setting {
  std::string scheme, correction;
  std::uint64_t delay = 0, local_steps = 1;

  DelayOptions options() const {
    DelayOptions options;
    options.parse_correction(correction);
    options.delay = delay;
    options.local_steps = local_steps;
    return options;
  }
  std::string str() const {
    return scheme + " " + correction + " D=" + std::to_string(delay) +
           " K=" + std::to_string(local_steps);
  }
};

inline std::vector<Setting> settings() {
  const std::string sparse = "dgc:momentum=0,density=0.05";
  return {{"dense", "ledger", 0, 1},       {"dense", "ledger", 7, 1},
          {"dense", "ledger", 7, 3},       {"dense", "ledger", 2, 5},
          {sparse, "ledger", 6, 1},        {sparse, "ledger:book=b", 6, 2},
          {"int8", "ledger:book=b", 4, 1}, {"dense", "pull", 6, 1},
          {sparse, "pull:clip=1", 6, 2},   {"dense", "none", 5, 1},
          {"dense", "none", 5, 2},         {"dense", "published", 6, 1},
          {"dense", "published", 6, 3},    {"dense", "published", 0, 1},
          {"powersgd", "ledger", 4, 4},    {"dense", "ledger:share=0.5,clip=0.5", 6, 2},
          {"fp16", "ledger", 3, 2},        {"dense", "soft", 8, 1},
          {"dense", "soft", 7, 3},         {"dense", "soft:share=1", 8, 1},
          {sparse, "soft:book=b", 8, 3}};
}

// A task under delayed averaging in which some workers miss rounds.
class Training {
 public:
  Training(Group& group, const Setting& setting)
      : task_(group),
        setting_(setting),
        delayed_(group, task_.buckets, views(task_.weights), Config::parse(setting.scheme),
                 setting.options(), {},
                 [this](std::uint64_t, std::size_t b, std::span<const float> mean,
                        std::span<float> anchor) { task_.move(mean, task_.replayed[b], anchor); }) {
  }

  void run(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t step = from; step < to; ++step) {
      task_.compute(step);
      if (setting_.correction.starts_with("published")) delayed_.correct(views(task_.gradients));
      task_.update();
      delayed_.finish_step(!task_.misses(step));
    }
  }

  void visit_state(StateVisitor& visitor) {
    task_.visit_state(visitor);
    delayed_.visit_state(visitor);
  }

  Task& task() { return task_; }
  PublishedAverage& delayed() { return delayed_; }

 private:
  Task task_;
  Setting setting_;
  PublishedAverage delayed_;
};

inline void check_equal(Group& group, const Arrays& arrays) {
  std::vector<Replica> replicas;
  for (std::size_t b = 0; b < arrays.size(); ++b)
    replicas.push_back({"array " + std::to_string(b), std::as_bytes(arrays[b])});
  ASSERT_NO_THROW(check_replicas(group, replicas));
}

// Law: corrections sum to zero over the workers, so the mean of their models is the start plus the
// mean of all their updates, as if there were no delay. This does not hold if own updates are held
// back (none, soft, share=), corrections are clipped (clip=), or messages are sparse under book a.
inline void law_mean_model(Group& group, const Setting& setting, Task& task) {
  const DelayOptions options = setting.options();
  if (options.correction == Correction::none || options.clip != 0) return;
  if (options.effective_share() != 1 || options.measures_share()) return;
  if (setting.scheme != "dense" && !options.book_b) return;
  const std::vector<float> first = gradient(Shape::normal, task.weights[0].size(), 0);
  std::vector<float> error(first.size());
  for (std::size_t i = 0; i < error.size(); ++i)
    error[i] = static_cast<float>(task.weights[0][i] - first[i] - task.applied[i]);
  group.all_reduce(std::as_writable_bytes(std::span(error)), DType::f32, ReduceOp::sum, {}).wait();
  for (const float value : error) ASSERT_NEAR(value, 0, 1e-4);
}

// Law: anchors have the same bits on all ranks, during the run and after the drain, when the
// weights equal the anchor. And the training has come closer to its target.
inline void law_anchors(Group& group, const Setting& setting) {
  SCOPED_TRACE(setting.str());
  Training training(group, setting);
  double before = 0, after = 0;
  for (const float value : training.task().weights[0]) before += value * value;
  training.run(0, 60);
  Arrays anchors;
  for (std::size_t b = 0; b < training.task().buckets.size(); ++b)
    anchors.push_back(training.delayed().anchor(b));
  {
    const auto lock = training.delayed().hold();
    check_equal(group, anchors);
    law_mean_model(group, setting, training.task());
  }
  training.run(60, 97);
  training.delayed().drain();
  check_equal(group, anchors);
  check_equal(group, views(training.task().weights));
  for (const float value : anchors[0]) after += value * value;
  EXPECT_LT(after, 0.9 * before);
}

// Law: stop, save, load into a new object, continue: the same bits as without the stop.
inline void law_resume(Group& group, const Setting& setting) {
  SCOPED_TRACE(setting.str());
  State state, straight_state, resumed_state;
  Training straight(group, setting);
  straight.run(0, 23);
  StateSaver saver(state);
  straight.visit_state(saver);
  straight.run(23, 41);
  StateSaver straight_saver(straight_state);
  straight.visit_state(straight_saver);
  Training resumed(group, setting);
  StateLoader loader(state);
  resumed.visit_state(loader);
  resumed.run(23, 41);
  StateSaver resumed_saver(resumed_state);
  resumed.visit_state(resumed_saver);
  ASSERT_EQ(serialize(straight_state), serialize(resumed_state));
}

// Every scheme can carry the messages. Schemes with several collectives have one message at a time.
inline void law_scheme(Group& group, const Scheme& scheme) {
  Config config{scheme.name, {}};
  for (const Option& option : scheme.options) {
    if (option.name == "momentum" && keeps_momentum(config)) config.options["momentum"] = "0";
    if (option.name == "density") config.options["density"] = "0.1";
  }
  if (scheme.name == "signum") return;  // rejected: its votes are not a mean of updates
  law_anchors(group, {config.str(), "ledger", 4, 4});
}

// D = 0, K = 1 is plain training on averaged gradients.
inline void law_synchronous(Group& group) {
  for (const char* correction : {"ledger", "pull", "none", "published"}) {
    Training training(group, {"dense", correction, 0, 1});
    Task plain(group);
    for (std::uint64_t step = 0; step < 30; ++step) {
      training.task().rank = plain.rank = group.rank();
      training.task().compute(step);
      if (std::string(correction) == "published")
        training.delayed().correct(views(training.task().gradients));
      training.task().update();
      training.delayed().finish_step();
      plain.compute(step);
      const auto lock = training.delayed().hold();
      for (auto& array : plain.gradients) {
        group.all_reduce(std::as_writable_bytes(std::span(array)), DType::f32, ReduceOp::sum, {})
            .wait();
        for (float& value : array) value /= static_cast<float>(group.size());
      }
      plain.update();
    }
    for (std::size_t b = 0; b < plain.weights.size(); ++b) {
      for (std::size_t i = 0; i < plain.weights[b].size(); ++i)
        ASSERT_NEAR(plain.weights[b][i], training.task().weights[b][i], 1e-4) << correction;
    }
  }
}

// A step does not wait while its messages are younger than D: rank 1 is stuck for a while, and rank
// 0 takes D further steps meanwhile.
inline void law_never_waits(Group& group) {
  const std::uint64_t delay = 8;
  Training training(group, {"dense", "ledger", delay, 1});
  training.run(0, 10);
  {
    const auto lock = training.delayed().hold();
    group.barrier().wait();
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto pause = std::chrono::milliseconds(1500);
  if (group.rank() == 1) std::this_thread::sleep_for(pause);
  training.run(10, 10 + delay);
  const auto spent = std::chrono::steady_clock::now() - begin;
  if (group.rank() == 0) {
    EXPECT_LT(spent, pause);
  }
  training.run(10 + delay, 30);
  training.delayed().drain();
  check_equal(group, views(training.task().weights));
}

}  // namespace thinwire::testing
