// stream_laws.h: what a StreamDelayedAverage must keep, on any device: the bits of a
// DelayedAverage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/delay/training.h"
#include "thinwire/core/buffer.h"
#include "thinwire/delay/stream_delayed.h"

namespace thinwire::testing {

// Those of the CPU that run in streams, and some more.
inline std::vector<Setting> stream_settings() {
  std::vector<Setting> all = settings();
  std::erase_if(all, [](const Setting& one) { return one.correction == "published"; });
  const std::string sparse = "dgc:momentum=0,density=0.05";
  for (Setting more :
       {Setting{"dense", "soft:pace=0.5", 0, 1}, Setting{"dense", "soft", 5, 2},
        Setting{sparse, "soft", 9, 1}, Setting{"bf16", "soft", 6, 1},
        Setting{"onebit:momentum=0", "soft", 4, 1}, Setting{"csc:momentum=0", "soft", 3, 3},
        Setting{"dgc:momentum=0,density=0.02,warmup=12", "soft", 7, 1},
        Setting{"dgc:momentum=0,density=0.05,clip=0.5", "soft", 4, 1}})
    all.push_back(more);
  return all;
}

// A task whose weights are in the memory of a device, in pieces of odd lengths.
class StreamTraining {
 public:
  StreamTraining(const StreamLink& link, const Setting& setting, bool moments,
                 const DelayOptions& options)
      : task_(link.group), moments_(moments), stream_(link.device) {
    for (const Values* from : {&task_.weights, &task_.moments}) {
      for (const auto& values : *from)
        memory_.emplace_back(place_on(link.device), values.size() * sizeof(float), link.device);
    }
    upload();
    stream_.wait();
    delayed_.emplace(link, task_.buckets, pieces(0), Config::parse(setting.scheme), options,
                     moments ? pieces(task_.buckets.size()) : std::vector<LedgerPieces>());
  }
  StreamTraining(const StreamLink& link, const Setting& setting, bool moments)
      : StreamTraining(link, setting, moments, setting.options()) {}

  void step(std::uint64_t number) {
    task_.compute(number);
    task_.update();
    if (moments_) task_.follow_moments(number);
    upload();
    if (number % 3 != 0) delayed_->expect_step();
    delayed_->finish_step(stream_.get(), !task_.misses(number));
    download();
  }
  void run(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t number = from; number < to; ++number) step(number);
  }
  void drain() {
    delayed_->drain(stream_.get());
    download();
  }

  std::vector<float> anchor(std::size_t bucket) {
    std::vector<float> found(task_.buckets[bucket].elements());
    stream_.copy(found.data(), delayed_->anchor(bucket, stream_.get()),
                 found.size() * sizeof(float));
    delayed_->keep_off(stream_.get());
    stream_.wait();
    return found;
  }

  void visit_state(StateVisitor& visitor) {
    task_.visit_state(visitor);
    delayed_->visit_state(visitor, stream_.get());
    download();
  }

  Task& task() { return task_; }
  StreamDelayedAverage& delayed() { return *delayed_; }
  Stream stream() const { return stream_.get(); }
  void download() { copy(false); }

 private:
  std::vector<LedgerPieces> pieces(std::size_t first) {
    std::vector<LedgerPieces> all;
    for (std::size_t b = 0; b < task_.buckets.size(); ++b) {
      LedgerPieces& of = all.emplace_back();
      for (const Parameter& parameter : task_.buckets[b].parameters)
        add_pieces(of, memory_[first + b].as<float>() + parameter.offset, parameter.offset,
                   parameter.count);
    }
    return all;
  }
  void upload() { copy(true); }
  void copy(bool up) {
    std::size_t at = 0;
    for (Values* of : {&task_.weights, &task_.moments}) {
      for (auto& values : *of) {
        const Buffer& there = memory_[at++];
        if (up)
          stream_.copy(there.data(), values.data(), there.size());
        else
          stream_.copy(values.data(), there.data(), there.size());
      }
    }
    stream_.wait();
  }

  Task task_;
  bool moments_;
  OwnStream stream_;
  std::vector<Buffer> memory_;  // weights by bucket, then moments
  std::optional<StreamDelayedAverage> delayed_;
};

// The same on the CPU.
class UsualTraining {
 public:
  UsualTraining(Group& group, const Setting& setting, bool moments)
      : task_(group), moments_(moments) {
    delayed_.emplace(group, task_.buckets, views(task_.weights), Config::parse(setting.scheme),
                     setting.options(), moments ? views(task_.moments) : Arrays());
  }
  void step(std::uint64_t number) {
    task_.compute(number);
    task_.update();
    if (moments_) task_.follow_moments(number);
    delayed_->finish_step(!task_.misses(number));
  }
  void run(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t number = from; number < to; ++number) step(number);
  }
  void visit_state(StateVisitor& visitor) {
    task_.visit_state(visitor);
    delayed_->visit_state(visitor);
  }
  Task& task() { return task_; }
  DelayedAverage& delayed() { return *delayed_; }

 private:
  Task task_;
  bool moments_;
  std::optional<DelayedAverage> delayed_;
};

template <typename T>
std::vector<std::byte> bytes_of_training(T& training) {
  State state;
  StateSaver saver(state);
  training.visit_state(saver);
  return serialize(state);
}

inline void expect_same(const Values& a, const Values& b, const std::string& where) {
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(same_bits(a[i], b[i])) << where << ' ' << i;
}

// Law: weights after every step, anchors, moments, the state and the number of bytes are those of a
// DelayedAverage, to the bit.
inline void law_same_as_delayed(const StreamLink& link, const Setting& setting, bool moments) {
  SCOPED_TRACE(setting.str());
  constexpr std::uint64_t steps = 26;
  std::vector<Values> weights, averaged;
  std::vector<std::byte> state;
  Values anchors;
  Report expected;
  {
    UsualTraining usual(link.group, setting, moments);
    for (std::uint64_t step = 0; step < steps; ++step) {
      usual.step(step);
      weights.push_back(usual.task().weights);
      averaged.push_back(usual.task().moments);
      if (step == 17) state = bytes_of_training(usual);
    }
    (void)usual.delayed().hold();  // until the last message is encoded, which the report counts
    expected = usual.delayed().report();
    usual.delayed().drain();
    weights.push_back(usual.task().weights);
    for (const Bucket& bucket : usual.task().buckets) {
      const auto anchor = usual.delayed().anchor(bucket.id);
      anchors.emplace_back(anchor.begin(), anchor.end());
    }
  }
  StreamTraining other(link, setting, moments);
  for (std::uint64_t step = 0; step < steps; ++step) {
    other.step(step);
    const std::string where = setting.str() + " step " + std::to_string(step);
    ASSERT_NO_FATAL_FAILURE(expect_same(other.task().weights, weights[step], where));
    ASSERT_NO_FATAL_FAILURE(expect_same(other.task().moments, averaged[step], where));
    if (step == 17) {
      ASSERT_EQ(bytes_of_training(other), state) << where;
    }
  }
  (void)other.delayed().hold();
  const Report report = other.delayed().report();
  EXPECT_EQ(report.steps, expected.steps);
  EXPECT_EQ(report.payload_bytes, expected.payload_bytes);
  EXPECT_EQ(report.dense_bytes, expected.dense_bytes);
  other.drain();
  expect_same(other.task().weights, weights.back(), "drained");
  for (std::size_t b = 0; b < anchors.size(); ++b)
    ASSERT_TRUE(same_bits(other.anchor(b), anchors[b])) << b;
}

// Law: a state goes from the CPU to the device and back, with messages in flight.
inline void law_delayed_state_moves(const StreamLink& link, const Setting& setting, bool moments) {
  SCOPED_TRACE(setting.str());
  State from_usual, from_other, straight;
  {
    UsualTraining usual(link.group, setting, moments);
    usual.run(0, 13);
    StateSaver saver(from_usual);
    usual.visit_state(saver);
    usual.run(13, 24);
    StateSaver end(straight);
    usual.visit_state(end);
  }
  {
    StreamTraining other(link, setting, moments);
    StateLoader loader(from_usual);
    other.visit_state(loader);
    other.run(13, 19);
    StateSaver saver(from_other);
    other.visit_state(saver);
  }
  UsualTraining usual(link.group, setting, moments);
  StateLoader loader(from_other);
  usual.visit_state(loader);
  usual.run(19, 24);
  ASSERT_EQ(bytes_of_training(usual), serialize(straight));
}

// Law: an update that is not finite ends the job on all ranks, and names the parameter where it is.
// The round is not applied, and no state is saved any more.
inline void law_diverged(const StreamLink& link, const std::string& scheme) {
  StreamTraining training(link, {scheme, "soft", 3, 1}, false);
  training.run(0, 5);
  const bool mine = link.group.rank() == 1;
  if (mine) training.task().weights[0][4100] = std::numeric_limits<float>::infinity();
  const std::string text = error_of([&] {
    training.run(5, 20);
    training.drain();
  });
  const char* const expected =
      mine ? "this worker's update of parameter 'conv.bias'" : "another worker's update";
  EXPECT_NE(text.find(expected), std::string::npos) << scheme << ": " << text;
  if (!mine) {
    for (const float value : training.anchor(0)) ASSERT_TRUE(std::isfinite(value));
  }
  State state;
  StateSaver saver(state);
  EXPECT_EQ(error_of([&] { training.visit_state(saver); }), text);
}

}  // namespace thinwire::testing
