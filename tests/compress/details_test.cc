// details_test.cc: what a codec must say and restore, where schemes as a whole rarely ask.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tests/laws.h"
#include "thinwire/compress/ranged.h"

namespace thinwire::details {

using namespace testing;

// Takes no range that contains element `bad`.
class Refusing final : public RangedCodec {
 public:
  explicit Refusing(std::size_t bad) : RangedCodec(16, 8), bad_(bad) {}
  std::size_t payload_bytes() const override { return 4; }

 protected:
  bool encode_range(Range range, const float*, float*, DrawKey, std::uint8_t*) const override {
    return takes(range);
  }
  bool add_range(Range range, const std::uint8_t*, float, float*) const override {
    return takes(range);
  }

 private:
  bool takes(Range range) const { return bad_ < range.first || bad_ >= range.first + range.count; }
  std::size_t bad_;
};

TEST(RangedCodec, OneBadRangeIsABadPayload) {
  std::vector<std::byte> payload(4), longer(5);
  std::vector<float> values(16), shorter(15);
  for (const std::size_t bad : {0u, 15u, 16u}) {
    Refusing codec(bad);
    const bool good = bad == 16;
    EXPECT_EQ(codec.encode(values, {}, 1, payload).finite, good) << bad;
    EXPECT_EQ(codec.encode(values, {}, 1, payload).bytes, 4u);
    EXPECT_EQ(codec.add(payload, 1, values).code, good ? Code::ok : Code::bad_value) << bad;
    EXPECT_EQ(codec.add(longer, 1, values).code, Code::truncated);
    EXPECT_EQ(codec.add(payload, 1, shorter).code, Code::truncated);
    int culprit = 7;
    const std::vector<ConstBytes> payloads = {payload, payload};
    EXPECT_EQ(codec.average(payloads, 1, values, culprit).code, good ? Code::ok : Code::bad_value);
    EXPECT_EQ(culprit == 2, good) << bad;
    const std::vector<ConstBytes> uneven = {payload, longer};
    EXPECT_EQ(codec.average(uneven, 1, values, culprit).code, Code::truncated);
    EXPECT_EQ(culprit, 1);
  }
}

// One step of ones, and the state after it.
static State state_after(const std::string& config, const Bucket& bucket, std::size_t& sent) {
  const auto compressor = make_compressor(Config::parse(config), bucket, {0, 1});
  std::vector<float> g(bucket.elements());
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i + 1);
  std::vector<std::byte> out(compressor->leg(0, 0).bytes);
  const std::size_t sizes[] = {compressor->encode({}, g, out)};
  EXPECT_TRUE(compressor->decode({}, {out, out.size(), sizes}, g).ok());
  sent = static_cast<std::size_t>(std::ranges::count_if(g, [](float x) { return x != 0; }));
  State state;
  StateSaver saver(state);
  compressor->visit_state(saver);
  return state;
}

// Options that change what is kept, and what is sent, without which all laws hold as well.
TEST(Options, AreHeeded) {
  const Bucket bucket{0, {{"a", 0, 60, {}}, {"b", 60, 40, {}}}};
  std::size_t sent = 0;
  EXPECT_FALSE(state_after("dgc:momentum=0", bucket, sent).contains("a/u"));
  EXPECT_EQ(norm(state_after("dgc:density=1,mask=on", bucket, sent).at("a/u").values), 0);
  EXPECT_GT(norm(state_after("dgc:density=1,mask=off", bucket, sent).at("a/u").values), 0);
  EXPECT_EQ(state_after("threshold", bucket, sent).count("bucket0/tau1"), 1u);
  EXPECT_EQ(state_after("threshold:quota=bucket", bucket, sent).count("bucket0/tau1"), 0u);
  EXPECT_EQ(state_after("threshold:quota=bucket", bucket, sent).count("bucket0/tau0"), 1u);
  for (const std::size_t percent : {10u, 50u}) {
    state_after("threshold:quota=bucket,density=0." + std::to_string(percent), bucket, sent);
    EXPECT_EQ(sent, percent);
  }
  const Bucket matrix{0, {{"w", 0, 1500, {30, 50}}}};
  const auto has_q = [&](const char* config) {
    State state;
    StateSaver saver(state);
    make_compressor(Config::parse(config), matrix, {0, 1})->visit_state(saver);
    return state.contains("w/q");
  };
  EXPECT_TRUE(has_q("powersgd"));
  EXPECT_FALSE(has_q("powersgd:warm_start=off"));
}

// What a step has taught a threshold is forgotten where that step did not take place because of
// another bucket.
TEST(Threshold, AVoidStepLeavesTheThresholdAsItWas) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 3000), Bucket::single(1, "x", 50)};
  run_local(2, [&](Group& group) {
    Exchange exchange(group, buckets, Config::parse("threshold:density=0.05"));
    const auto thresholds = [&] {
      std::vector<double> all;
      for (const auto& [name, entry] : state_of(exchange))
        if (!entry.is_tensor && name != "exchange/step") all.push_back(entry.number);
      return all;
    };
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, 0));
    take_step(exchange, model, 0);
    const std::vector<double> before = thresholds();
    ASSERT_FALSE(before.empty());
    model = model_gradient(buckets, Shape::normal, seed_of(group, 1));
    for (float& value : model[0]) value *= 8;
    if (group.rank() == 1) model[1][9] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_TRUE(take_step(exchange, model, 0).skipped);
    if (group.rank() == 1) {
      EXPECT_EQ(thresholds(), before);
    }
  });
}

}  // namespace thinwire::details
