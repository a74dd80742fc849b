// reader_test.cc: with book b a worker decodes its own messages, by compressors that only read.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/exchange/sites.h"
#include "thinwire/delay/pipeline.h"
#include "thinwire/thinwire.h"

namespace thinwire::reader {

using namespace testing;

TEST(Pipeline, WhoReadsOwnMessagesNeedsNoSecondMemory) {
  const Config config = Sites::config();
  Sites::take();
  for (const bool own : {false, true}) {
    run_local(2, [&](Group& group) {
      Pipeline rounds(group, {Bucket::single(0, "w", 40)}, config, 1, own);
    });
    std::vector<std::string> expected = {"0 of 2 sends or sums", "1 of 2 sends or sums"};
    if (own) expected.insert(expected.begin(), 2, "0 of 1 reads or sums");
    EXPECT_EQ(Sites::take(), expected) << own;
  }
}

}  // namespace thinwire::reader
