// slots_test.cc: the room that a split-reduce asks for: workers' frames in the scatter, owners'
// frames in the gather, the longest of all stripes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/laws.h"
#include "thinwire/exchange/striped.h"

namespace thinwire::slots {

using namespace testing;

// The longest frame of a scheme over all stripes.
static std::size_t longest(const char* config, const Bucket& bucket, std::size_t stripes) {
  std::size_t bytes = 0;
  for (const Stripe& stripe : cut(bucket, stripes)) {
    const Site site{0, 1, false, true};
    const auto compressor = make_compressor(Config::parse(config), stripe.bucket, site);
    if (stripe.count() > 0) bytes = std::max(bytes, compressor->leg(0, 0).bytes);
  }
  return bytes;
}

TEST(StripedSlots, FitTheSchemeOfTheRound) {
  const Bucket bucket{0, {{"a", 0, 1000, {}}, {"b", 1000, 77, {}}}};
  const StripedCompressor striped(Config::parse("topk:density=0.01"),
                                  ExchangeKind::parse("split,second=topk:density=0.5,values=f32"),
                                  bucket, {0, 3});
  const Leg scatter = striped.leg(0, 0), gather = striped.leg(0, 1);
  EXPECT_EQ(scatter.reduction, Reduction::scatter);
  EXPECT_EQ(scatter.bytes, longest("topk:density=0.01", bucket, 3));
  EXPECT_EQ(gather.reduction, Reduction::gather);
  EXPECT_EQ(gather.bytes, longest("topk:density=0.5,values=f32", bucket, 3));
  EXPECT_GT(gather.bytes, 4 * scatter.bytes);
}

// And they hold what is sent: owners that send much more than workers, or much less.
TEST(StripedSlots, HoldUnequalSchemes) {
  for (const auto& [first, second] :
       {std::pair{"topk:density=0.01", "topk:density=1,values=f32"},
        std::pair{"topk:density=1,values=f32", "topk:density=0.01"}, std::pair{"int8", "topk"}}) {
    run_local(3, [&, config = first, kind = std::string("split,second=") + second](Group& group) {
      const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1000)};
      Exchange exchange(group, buckets, Config::parse(config), {.kind = ExchangeKind::parse(kind)});
      for (std::uint64_t step = 0; step < 3; ++step) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
        EXPECT_EQ(error_of([&] { take_step(exchange, model, 0); }), "") << config << " " << kind;
      }
    });
  }
}

}  // namespace thinwire::slots
