// signum_test.cc: momentum, vote and zeros against their definition, computed by hand.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "tests/gradients.h"
#include "thinwire/compress/registry.h"
#include "thinwire/wire/block.h"
#include "thinwire/wire/votes.h"

namespace thinwire {
namespace {

using namespace testing;
using Workers = std::vector<std::vector<float>>;  // one array per worker

// All workers of a job, with the collective simulated.
class Job {
 public:
  Job(const std::string& config, std::size_t workers, std::size_t count) : count_(count) {
    for (std::size_t rank = 0; rank < workers; ++rank) {
      members_.push_back(make_compressor(Config::parse(config), Bucket::single(0, "w", count),
                                         {static_cast<int>(rank), static_cast<int>(workers)}));
    }
  }

  // Takes one step and returns what worker 0 decodes.
  std::vector<float> step(Workers g) {
    const Leg leg = members_[0]->leg(step_, 0);
    const Turn turn{step_++, 0, {}, 0};
    std::vector<std::byte> slots(members_.size() * leg.bytes), sum(leg.bytes);
    sizes_.assign(members_.size(), 0);
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      const Bytes slot = Bytes(slots).subspan(rank * leg.bytes, leg.bytes);
      sizes_[rank] = members_[rank]->encode(turn, std::span(g[rank]), slot);
      for (std::size_t i = 0; i < leg.bytes; ++i)
        sum[i] = std::byte(std::to_integer<unsigned>(sum[i]) + std::to_integer<unsigned>(slot[i]));
    }
    Inbox inbox{leg.reduction == Reduction::gather ? slots : sum, leg.bytes, sizes_};
    std::vector<float> out(count_);
    status_ = members_[0]->decode(turn, inbox, std::span(out));
    return out;
  }

  Code code() const { return status_.code; }
  std::size_t bytes(std::size_t rank) const { return sizes_[rank]; }
  std::vector<float> momentum(std::size_t rank) {
    State state;
    StateSaver saver(state);
    members_[rank]->visit_state(saver);
    EXPECT_EQ(state.at("w/m").share, Share::local);
    return state.at("w/m").values;
  }

 private:
  std::size_t count_;
  std::uint64_t step_ = 0;
  std::vector<std::unique_ptr<Compressor>> members_;
  std::vector<std::size_t> sizes_;
  Status status_;
};

float vote(const Workers& momenta, std::size_t i) {
  int up = 0, down = 0;
  for (const auto& m : momenta) {
    if (m[i] > 0) ++up;
    if (m[i] < 0) ++down;
  }
  return up == down ? 0.0f : up > down ? 1.0f : -1.0f;
}

TEST(Signum, IsThePapers) {
  const std::size_t count = 9001;
  for (const std::string config : {"signum", "signum:travel=sum", "signum:momentum=0.5"}) {
    const float beta = config == "signum:momentum=0.5" ? 0.5f : 0.9f, rest = 1.0f - beta;
    for (const std::size_t workers : {1u, 2u, 3u, 8u}) {
      Job job(config, workers, count);
      Workers m(workers, std::vector<float>(count));
      for (std::uint64_t step = 0; step < 4; ++step) {
        Workers g;
        for (std::size_t rank = 0; rank < workers; ++rank) {
          g.push_back(gradient(Shape::normal, count, 100 * step + rank));
          // The front is always zero, the back in the first steps.
          for (std::size_t i = 0; i < count; ++i) {
            if (i < 5 * (rank + 1) || (i > 8990 && step < 2)) g[rank][i] = 0;
            m[rank][i] = beta * m[rank][i] + rest * g[rank][i];
          }
        }
        const auto out = job.step(g);
        ASSERT_EQ(job.code(), Code::ok);
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], vote(m, i)) << i;
        for (std::size_t rank = 0; rank < workers; ++rank)
          ASSERT_TRUE(same_bits(job.momentum(rank), m[rank]));
      }
    }
  }
}

// Two against two, a single vote among zeros, no votes: 0, its sign, 0.
TEST(Signum, TiesAndZerosGiveZero) {
  for (const std::string config : {"signum:momentum=0", "signum:momentum=0,travel=sum"}) {
    Job job(config, 4, 4);
    EXPECT_EQ(job.step({{1, 0, 0, -0.0f}, {2, -3, 0, 0}, {-1, 0, 0, 5}, {-1e-40f, 0, 0, 5}}),
              (std::vector<float>{0, -1, 0, 1}));
  }
}

TEST(Signum, OneBitWhereNothingIsZero) {
  const std::size_t count = 100000, flags = 4;  // 25 chunks
  Job job("signum", 1, count);
  auto g = gradient(Shape::normal, count, 1);
  job.step({g});
  EXPECT_EQ(job.bytes(0), block_header_bytes + flags + count / 8);
  Job other("signum", 1, count);
  g[50000] = 0;
  other.step({g});
  EXPECT_EQ(other.bytes(0), block_header_bytes + flags + count / 8 + votes_chunk / 8);
}

TEST(Signum, NonFiniteGradientIsSeenByAllAndStaysOut) {
  for (const std::string config : {"signum", "signum:travel=sum"}) {
    Job job(config, 3, 200);
    Workers g(3, gradient(Shape::normal, 200, 1));
    g[1][199] = std::numeric_limits<float>::quiet_NaN();
    job.step(g);
    EXPECT_EQ(job.code(), Code::skipped);
    EXPECT_EQ(job.momentum(1)[199], 0);
    job.step(Workers(3, gradient(Shape::normal, 200, 2)));
    EXPECT_EQ(job.code(), Code::ok);
  }
}

TEST(Signum, SumRefusesMoreVotesThanAByteCounts) {
  const auto make = [](int world) {
    (void)make_compressor(Config::parse("signum:travel=sum"), Bucket::single(3, "w", 1),
                          {5, world});
  };
  EXPECT_NO_THROW(make(127));
  const std::string text = error_of([&] { make(128); });
  for (const char* part : {"rank 5", "bucket 3", "127", "128", "travel=gather"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Votes, RefusesWhatNoEncoderWrites) {
  // 11 elements: a byte of flags, two of signs, two of zeros.
  const auto answer = [](const std::vector<unsigned>& bytes) {
    std::vector<std::byte> payload;
    for (const unsigned byte : bytes) payload.push_back(std::byte(byte));
    return VoteReader().open(11, payload).code;
  };
  EXPECT_EQ(answer({0, 0xff, 7}), Code::ok);
  EXPECT_EQ(answer({1, 0xf0, 7, 0x0f, 0}), Code::ok);
  EXPECT_EQ(answer({2, 0xff, 7}), Code::bad_value);           // a second chunk
  EXPECT_EQ(answer({0, 0xff, 8}), Code::bad_value);           // padding of signs
  EXPECT_EQ(answer({1, 0xf0, 7, 0x0f, 8}), Code::bad_value);  // padding of zeros
  EXPECT_EQ(answer({1, 0xf0, 7, 0, 0}), Code::bad_value);     // flagged, but no zero
  EXPECT_EQ(answer({1, 0xf0, 7, 0x1f, 0}), Code::bad_value);  // a zero with a sign
  EXPECT_EQ(answer({0, 0xff}), Code::truncated);
  EXPECT_EQ(answer({1, 0xf0, 7, 0x0f}), Code::truncated);
  EXPECT_EQ(answer({0, 0xff, 7, 0}), Code::mismatch);
  EXPECT_EQ(answer({}), Code::truncated);
}

}  // namespace
}  // namespace thinwire
