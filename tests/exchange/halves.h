// halves.h: models whose gradients are f16 or bf16, in some buckets or in all, and laws of them for
// every device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/exchange/stream_laws.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::testing {

using Types = std::vector<DType>;
inline const Types types[] = {
    {DType::bf16}, {DType::f16}, {DType::f32, DType::bf16, DType::bf16, DType::f16}};

inline std::string text_of(const Types& all) {
  std::string text;
  for (const DType type : all) text += std::string(" ") + name_of(type);
  return text;
}

// awkward_buckets() of these types, in turn.
inline std::vector<Bucket> buckets_of(const Types& all) {
  std::vector<Bucket> buckets = awkward_buckets();
  for (Bucket& bucket : buckets) bucket.dtype = all[bucket.id % all.size()];
  return buckets;
}

// A model's gradients as bytes of the buckets' types.
using Narrow = std::vector<std::vector<std::byte>>;

inline Narrow narrowed(const std::vector<Bucket>& buckets, const Model& model) {
  Narrow narrow;
  for (const Bucket& bucket : buckets) {
    narrow.emplace_back(bucket.elements() * size_of(bucket.dtype));
    (void)cast_any(DType::f32, model[bucket.id].data(), bucket.dtype, narrow.back().data(),
                   bucket.elements(), 1);
  }
  return narrow;
}

inline Model widened_model(const std::vector<Bucket>& buckets, const Narrow& narrow) {
  Model model;
  for (const Bucket& bucket : buckets) {
    model.emplace_back(bucket.elements());
    (void)cast_any(bucket.dtype, narrow[bucket.id].data(), DType::f32, model.back().data(),
                   bucket.elements(), 1);
  }
  return model;
}

inline TensorView view_of(const Bucket& bucket, Narrow& narrow) {
  return {narrow[bucket.id].data(), bucket.elements(), bucket.dtype, {}};
}

inline StepResult step_of(Exchange& exchange, const std::vector<Bucket>& buckets, Narrow& narrow) {
  for (const Bucket& bucket : buckets) exchange.submit(bucket.id, view_of(bucket, narrow));
  return exchange.finish();
}

// As step_of() of an Exchange.
inline StepResult step_of(StreamExchange& exchange, const std::vector<Bucket>& buckets,
                          Narrow& narrow, Device device, float fill) {
  const OwnStream stream(device);
  std::vector<Buffer> memory;
  for (const Bucket& bucket : buckets) {
    const std::size_t bytes = narrow[bucket.id].size();
    memory.emplace_back(place_on(device), bytes, device);
    stream.copy(memory.back().data(), narrow[bucket.id].data(), bytes);
    exchange.submit(bucket.id, {memory.back().data(), bucket.elements(), bucket.dtype, device},
                    stream.get());
  }
  exchange.finish(stream.get(), fill);
  for (const Bucket& bucket : buckets)
    stream.copy(narrow[bucket.id].data(), memory[bucket.id].data(), narrow[bucket.id].size());
  stream.wait();
  return exchange.outcome();
}

// Law: a StreamExchange has the averages, the skipped steps and the states of an Exchange.
inline void law_halves(Group& group, const Config& config, const Types& all, const StreamLink& link,
                       const ExchangeOptions& options = {}) {
  const std::string what = config.str() + text_of(all);
  const auto buckets = buckets_of(all);
  std::vector<Narrow> averages;
  std::vector<std::vector<std::byte>> states;
  std::vector<bool> skipped;
  {
    Exchange exchange(group, buckets, config, options);
    for (std::uint64_t step = 0; step < 8; ++step) {
      averages.push_back(narrowed(buckets, course_gradient(group, buckets, step)));
      skipped.push_back(step_of(exchange, buckets, averages.back()).skipped);
      states.push_back(serialize(state_of(exchange)));
    }
  }
  Model filled;
  for (const Bucket& bucket : buckets) filled.emplace_back(bucket.elements(), 0.5f);
  StreamExchange exchange(link, buckets, config, options);
  for (std::uint64_t step = 0; step < 8; ++step) {
    Narrow narrow = narrowed(buckets, course_gradient(group, buckets, step));
    ASSERT_EQ(step_of(exchange, buckets, narrow, link.device, 0.5f).skipped, skipped[step]) << what;
    ASSERT_EQ(narrow, skipped[step] ? narrowed(buckets, filled) : averages[step])
        << what << " step " << step;
    ASSERT_EQ(bytes_of_state(exchange), states[step]) << what << " step " << step;
  }
}

// Law: where f16 cannot hold an average, here the second one, all ranks skip the step and keep what
// they sent. With a density of 1 it travels as a dense sum if there are several ranks.
template <typename AnyExchange, typename Step>
void law_overflow(AnyExchange& exchange, const Step& step) {
  const std::vector<Bucket> one = {Bucket::single(0, "w", 3, DType::f16)};
  for (const bool fits : {true, false}) {
    Narrow narrow = narrowed(one, {{40000, -40000, 1}});
    ASSERT_EQ(step(one, narrow), !fits);
    const std::vector<float> expected =
        fits ? std::vector<float>{40000, -40000, 1} : std::vector<float>{0, 0, 0};
    EXPECT_EQ(widened_model(one, narrow)[0], expected);
  }
  State state;
  StateSaver saver(state);
  exchange.visit_state(saver);
  EXPECT_EQ(state.at("w/v").values[1], -76000);
}

inline void law_overflow(Group& group) {
  Exchange exchange(group, {Bucket::single(0, "w", 3, DType::f16)},
                    Config::parse("dgc:density=1,values=f32,mask=off"));
  law_overflow(exchange, [&](const std::vector<Bucket>& one, Narrow& narrow) {
    return step_of(exchange, one, narrow).skipped;
  });
}

inline void law_overflow_on(const StreamLink& link) {
  StreamExchange exchange(link, {Bucket::single(0, "w", 3, DType::f16)},
                          Config::parse("dgc:density=1,values=f32,mask=off"));
  law_overflow(exchange, [&](const std::vector<Bucket>& one, Narrow& narrow) {
    return step_of(exchange, one, narrow, link.device, 0).skipped;
  });
}

}  // namespace thinwire::testing
