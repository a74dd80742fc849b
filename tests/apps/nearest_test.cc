// nearest_test.cc: mistyped words and the words that were meant.
// SPDX-License-Identifier: Apache-2.0
#include "apps/nearest.h"

#include <gtest/gtest.h>

namespace {

using thinwire::apps::did_you_mean;
using thinwire::apps::edits;

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(edits("", ""), 0u);
  EXPECT_EQ(edits("", "abc"), 3u);
  EXPECT_EQ(edits("abc", ""), 3u);
  EXPECT_EQ(edits("train", "train"), 0u);
  EXPECT_EQ(edits("trian", "train"), 1u);   // swapped
  EXPECT_EQ(edits("tran", "train"), 1u);    // added
  EXPECT_EQ(edits("trrain", "train"), 1u);  // removed
  EXPECT_EQ(edits("brain", "train"), 1u);   // replaced
  EXPECT_EQ(edits("kitten", "sitting"), 3u);
}

TEST(Nearest, TakesTheNearestOrNone) {
  const std::vector<std::string> words = {"dense", "dgc", "topk", "powersgd"};
  EXPECT_EQ(did_you_mean("powrsgd", words), "; did you mean 'powersgd'?");
  EXPECT_EQ(did_you_mean("dcg", words), "; did you mean 'dgc'?");
  EXPECT_EQ(did_you_mean("wings", words), "");
  EXPECT_EQ(did_you_mean("", words), "");
  EXPECT_EQ(did_you_mean("x", words), "");
  EXPECT_EQ(did_you_mean("a", std::vector<std::string>{"b"}), "");  // every letter would change
}

}  // namespace
