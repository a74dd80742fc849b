// stream_laws.h: what a StreamExchange must keep, on any device: the bits of an Exchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/exchange/forwarding.h"
#include "tests/laws.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/stream_exchange.h"

namespace thinwire::testing {

// All schemes, their variants, and options that change the way of a step.
inline std::vector<Config> stream_configs() {
  std::vector<Config> all = law_configs();
  for (const char* more : {
           "topk:density=0.05,values=f32,index=elias_fano",
           "topk:density=0.5",  // frames longer than a dense sum: an all-reduce of survivors
           "dgc:density=0.02,momentum=0,values=sign",
           "dgc:density=0.02,clip=0.5",
           "dgc:density=0.02,clip=0.5,clip_norm=bucket,nesterov=on",
           "dgc:density=0.02,warmup=8,values=log8,mask=off",
           "csc:density=0.1,warmup=4",
           "powersgd:warmup=4",
       })
    all.push_back(Config::parse(more));
  std::vector<Config> run;
  for (const Config& config : all) {
    const bool known = std::ranges::find(run, config.str(), &Config::str) != run.end();
    if (!known) run.push_back(config);
  }
  return run;
}

// The kinds of exchange, other than auto, that take a scheme.
inline std::vector<ExchangeKind> striped_kinds(const Config& config) {
  std::vector<ExchangeKind> fit;
  for (const char* text : {"split", "server:1", "split,second=topk:density=0.05"}) {
    const ExchangeKind kind = ExchangeKind::parse(text);
    if (error_of([&] { check_fit(kind, config); }).empty()) fit.push_back(kind);
  }
  return fit;
}

// A model's gradients in the memory of a device.
class OnDeviceModel {
 public:
  OnDeviceModel(const Model& model, Device device) : stream_(device) {
    for (const auto& values : model) {
      const std::size_t bytes = values.size() * sizeof(float);
      buffers_.emplace_back(place_on(device), bytes, device);
      stream_.copy(buffers_.back().data(), values.data(), bytes);
      counts_.push_back(values.size());
    }
    stream_.wait();
  }

  TensorView view(std::size_t bucket) const {
    return {buffers_[bucket].data(), counts_[bucket], DType::f32, stream_.device()};
  }
  Stream stream() const { return stream_.get(); }

  Model download() const {
    Model model;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      model.emplace_back(counts_[i]);
      stream_.copy(model.back().data(), buffers_[i].data(), counts_[i] * sizeof(float));
    }
    stream_.wait();
    return model;
  }

 private:
  OwnStream stream_;
  std::vector<Buffer> buffers_;
  std::vector<std::size_t> counts_;
};

// As take_step() of an Exchange.
inline StepResult take_step(StreamExchange& exchange, Model& model, std::uint64_t shuffle,
                            Device device, float fill = 0) {
  const OnDeviceModel gradients(model, device);
  for (std::size_t i = 0; i < model.size(); ++i) {
    const std::size_t bucket = (i + shuffle) % model.size();
    exchange.submit(static_cast<std::uint16_t>(bucket), gradients.view(bucket), gradients.stream());
  }
  exchange.finish(gradients.stream(), fill);
  model = gradients.download();
  return exchange.outcome();
}

inline std::vector<std::byte> bytes_of_state(StreamExchange& exchange) {
  State state;
  StateSaver saver(state);
  exchange.visit_state(saver);
  return serialize(state);
}

// The gradients of a rank; in step 3 and 6 some rank's are not finite.
inline Model course_gradient(const Group& group, const std::vector<Bucket>& buckets,
                             std::uint64_t step) {
  Model model =
      model_gradient(buckets, step % 2 ? Shape::heavy : Shape::normal, seed_of(group, step));
  const bool bad = (step == 3 || step == 6) && group.rank() == static_cast<int>(step) / 3 - 1;
  if (bad && step == 3) model[1][4000] = std::numeric_limits<float>::quiet_NaN();
  if (bad && step == 6) model[3][0] = -std::numeric_limits<float>::infinity();
  return model;
}

// Law: the averages, the skipped steps, the reports and the states of an Exchange, bit for bit.
inline void law_same_as_exchange(Group& group, const Config& config, const StreamLink& link,
                                 const ExchangeOptions& options = {}) {
  constexpr std::uint64_t steps = 12;
  const auto buckets = awkward_buckets();
  std::vector<Model> averages;
  std::vector<std::vector<std::byte>> states;
  std::vector<bool> skipped;
  Report expected;
  {
    Exchange exchange(group, buckets, config, options);
    for (std::uint64_t step = 0; step < steps; ++step) {
      averages.push_back(course_gradient(group, buckets, step));
      skipped.push_back(take_step(exchange, averages.back(), step).skipped);
      states.push_back(serialize(state_of(exchange)));
    }
    expected = exchange.report();
  }
  StreamExchange exchange(link, buckets, config, options);
  for (std::uint64_t step = 0; step < steps; ++step) {
    Model model = course_gradient(group, buckets, step);
    const StepResult result = take_step(exchange, model, seed_of(group, step), link.device);
    ASSERT_EQ(result.step, step);
    ASSERT_EQ(result.skipped, skipped[step]) << config.str() << " step " << step;
    for (std::size_t b = 0; b < buckets.size(); ++b)
      ASSERT_TRUE(same_bits(model[b], averages[step][b]))
          << config.str() << " step " << step << " bucket " << b;
    ASSERT_EQ(bytes_of_state(exchange), states[step]) << config.str() << " step " << step;
  }
  const Report report = exchange.report();
  EXPECT_EQ(report.steps, expected.steps);
  EXPECT_EQ(report.skipped, expected.skipped);
  // An Exchange leaves out further rounds of a skipped step; a device does not know of it.
  const bool rounds = make_compressor(config, buckets[1], {0, 1})->rounds() > 1;
  if (rounds)
    EXPECT_GE(report.payload_bytes, expected.payload_bytes) << config.str();
  else
    EXPECT_EQ(report.payload_bytes, expected.payload_bytes) << config.str();
  EXPECT_EQ(report.dense_bytes, expected.dense_bytes);
}

// Law: a state goes from the CPU to the device and back without a change of bits in between.
inline void law_state_moves(Group& group, const Config& config, const StreamLink& link,
                            const ExchangeOptions& options = {}) {
  const auto buckets = awkward_buckets();
  const auto gradient = [&](std::uint64_t step) {
    return model_gradient(buckets, Shape::heavy, seed_of(group, step));
  };
  Exchange straight(group, buckets, config, options);
  State state;
  {
    Exchange first(group, buckets, config, options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      Model model = gradient(step), same = model;
      take_step(straight, model, 0);
      take_step(first, same, 0);
    }
    state = state_of(first);
  }
  {
    StreamExchange second(link, buckets, config, options);
    StateLoader loader(state);
    second.visit_state(loader);
    for (std::uint64_t step = 4; step < 8; ++step) {
      Model model = gradient(step), same = model;
      take_step(straight, model, 0);
      ASSERT_EQ(take_step(second, same, 0, link.device).step, step);
      for (std::size_t b = 0; b < buckets.size(); ++b) ASSERT_TRUE(same_bits(model[b], same[b]));
    }
    ASSERT_EQ(bytes_of_state(second), serialize(state_of(straight))) << config.str();
    state.clear();
    StateSaver saver(state);
    second.visit_state(saver);
  }
  Exchange third(group, buckets, config, options);
  StateLoader loader(state);
  third.visit_state(loader);
  Model model = gradient(8), same = model;
  take_step(straight, model, 0);
  ASSERT_EQ(take_step(third, same, 0).step, 8u);
  for (std::size_t b = 0; b < buckets.size(); ++b) ASSERT_TRUE(same_bits(model[b], same[b]));
}

// After each gather, flips a bit of what rank 2 has sent to rank 1.
class FlipsABit final : public Forwarding {
 public:
  explicit FlipsABit(Group& inner) : Forwarding(inner) {}

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    const bool first = gathers_++ == 0;  // the agreement on the set-up
    if (!first && rank() == 1) slots[2 * slot_bytes + 40] ^= std::byte{4};
    return {};
  }

 private:
  int gathers_ = 0;
};

// Law: a damaged frame is an error that names rank and bucket, for ever; and what was sent is back
// in memory.
inline void law_damage(Group& group, Device device) {
  FlipsABit flips(group);
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 5000)};
  StreamExchange exchange({flips, nullptr, device}, buckets,
                          Config::parse("dgc:density=0.01,momentum=0"));
  const Model gradients = model_gradient(buckets, Shape::normal, seed_of(group, 0));
  Model model = gradients;
  if (group.rank() != 1) {
    EXPECT_FALSE(take_step(exchange, model, 0, device).skipped);
    return;
  }
  const std::string text = error_of([&] { take_step(exchange, model, 0, device); });
  EXPECT_EQ(text.find("rank 1, step 0, bucket 0, bytes from rank 2: frame's checksum"), 0u) << text;
  for (const float value : model[0]) ASSERT_EQ(value, 0.0f);
  EXPECT_EQ(error_of([&] { exchange.outcome(); }), text);
  EXPECT_EQ(error_of([&] { take_step(exchange, model, 0, device); }), text);
  State state;
  StateSaver saver(state);
  exchange.visit_state(saver);
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    ASSERT_NEAR(state.at("w/v").values[i], gradients[0][i], 1e-5) << i;
}

}  // namespace thinwire::testing
