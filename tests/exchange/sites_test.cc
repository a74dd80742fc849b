// sites_test.cc: which compressors of a split-reduce have a memory: those of a worker's gradients,
// and those of the averages that a rank owns.
// SPDX-License-Identifier: Apache-2.0
#include "tests/exchange/sites.h"

#include <gtest/gtest.h>

#include "tests/laws.h"
#include "thinwire/exchange/striped.h"

namespace thinwire::sites {

using namespace testing;
using Made = std::vector<std::string>;

static Made made_by(const char* kind, const Bucket& bucket, const Site& site) {
  const Config config = Sites::config();
  Sites::take();
  const StripedCompressor striped(config, ExchangeKind::parse(kind), bucket, site);
  return Sites::take();
}

TEST(StripedSites, OnlyWorkersAndOwnersHaveMemory) {
  const Bucket bucket = Bucket::single(0, "w", 1000);
  EXPECT_EQ(made_by("split", bucket, {1, 2}),
            (Made{"0 of 1 reads", "0 of 1 sends", "1 of 2 sends", "1 of 2 sends"}));
  EXPECT_EQ(made_by("server:1", bucket, {1, 3}), (Made{"0 of 1 reads", "1 of 2 sends"}));
  EXPECT_EQ(made_by("server:1", bucket, {2, 3}), (Made{"0 of 1 sends", "0 of 2 reads"}));
  EXPECT_EQ(made_by("split", Bucket{0, {}}, {1, 2}), Made{});
}

// Each bucket starts at another owner, so that tiny ones, which have few stripes, spread out.
TEST(StripedSites, TinyBucketsHaveDifferentOwners) {
  for (std::uint16_t id = 0; id < 6; ++id) {
    const Bucket tiny = Bucket::single(id, "w", 3);
    const std::vector<Stripe> stripes = cut(tiny, 3);
    std::size_t full = 0;
    while (stripes[full].count() == 0) ++full;
    for (int rank = 0; rank < 3; ++rank) {
      const bool owner = static_cast<int>((full + id) % 3) == rank;
      EXPECT_EQ(made_by("split", tiny, {rank, 3})[0], owner ? "0 of 1 sends" : "0 of 1 reads");
    }
  }
}

}  // namespace thinwire::sites
