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
