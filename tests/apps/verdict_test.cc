// verdict_test.cc: which scheme `thinwire inspect --model` recommends.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "apps/inspect_verdict.h"

namespace {

using thinwire::Link;
using thinwire::apps::Candidate;
using thinwire::apps::exchange_seconds;
using thinwire::apps::gradient_seconds;
using thinwire::apps::judge;

constexpr double elements = 1e6;

Candidate candidate(const char* scheme, double bytes, double kept, bool reducible) {
  Candidate made;
  made.scheme = scheme;
  made.bytes = bytes;
  made.kept = kept;
  made.reducible = reducible;
  return made;
}

// Costs as on the emulated link: a sum takes two steps and Gloo's handshake, a gather one step and
// the handshake. The second step's latency hides behind the bytes, where there are some, and long
// messages to several ranks take a tenth longer than their bytes.
TEST(Verdict, TimesFollowBytesAndLatencies) {
  const Link link = Link::parse("8mbit,10ms");
  Candidate sum = candidate("bf16", 2.4e6, 1, true);
  const double sum_bytes = link.wire_seconds(3'960'000);
  EXPECT_NEAR(exchange_seconds(sum, link, 4), 0.02 + sum_bytes, 1e-9);
  sum.collectives = 3;
  EXPECT_NEAR(exchange_seconds(sum, link, 4), 0.06 + sum_bytes, 1e-9);
  Candidate gather = candidate("topk", 1e4, 0.25, false);
  const double seconds = 0.02 + link.wire_seconds(30'000);
  EXPECT_NEAR(exchange_seconds(gather, link, 4), seconds, 1e-9);
  gather.encode_seconds = 1;
  gather.decode_seconds = 2;  // for each worker's payload
  EXPECT_NEAR(exchange_seconds(gather, link, 4), seconds + 9, 1e-9);
  EXPECT_NEAR(gradient_seconds(gather, link, 4), 4 * (seconds + 9), 1e-9);
  EXPECT_NEAR(exchange_seconds(sum, Link::parse("inf,1ms"), 4), 0.009, 1e-9);
}

TEST(Verdict, RoundingFinelyLosesNothing) {
  std::vector<Candidate> all = {candidate("bf16", 2e6, 0.99999, true)};
  all[0].loses = true;
  EXPECT_EQ(judge(all, elements, Link::parse("100mbit,1ms"), 4).take, "bf16");
  all[0].kept = 0.99;
  EXPECT_EQ(judge(all, elements, Link::parse("100mbit,1ms"), 4).take, "dense");
}

TEST(Verdict, WeighsTimeAgainstWhatArrives) {
  const Link link = Link::parse("100mbit,1ms");
  std::vector<Candidate> all = {
      candidate("dense", 4e6, 1, true), candidate("onebit", elements / 8, 0.6, false),
      candidate("randomk", 4e3, 0.001, true), candidate("dgc", 3e3, 0.2, false)};
  EXPECT_EQ(judge(all, elements, link, 4).take, "dgc");
  const std::string text = judge(all, elements, link, 4).text;
  for (const char* part : {"100mbit,1ms", "4 workers", "20 %", "Take dgc", "dense,dgc --link"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  all.back().loses = true;
  EXPECT_EQ(judge(all, elements, link, 4).take, "onebit");
}

TEST(Verdict, DenseIsAnAnswer) {
  std::vector<Candidate> all = {candidate("dgc", 3e3, 0.2, false)};
  all[0].encode_seconds = 0.01;
  EXPECT_EQ(judge(all, elements, Link::parse("100gbit,1us"), 4).take, "dense");
  EXPECT_EQ(judge({}, elements, Link::parse("1gbit,1ms"), 4).take, "dense");
  // Being five hundredths faster is not worthwhile.
  all = {candidate("almost", 3.8e6, 1, true)};
  EXPECT_EQ(judge(all, elements, Link::parse("1gbit,1us"), 4).take, "dense");
  all = {candidate("nothing", 1, 0, true)};
  EXPECT_EQ(judge(all, elements, Link::parse("1gbit,1us"), 4).take, "dense");
}

}  // namespace
