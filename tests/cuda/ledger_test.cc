// ledger_test.cc: the ledger of delayed averaging on a GPU against that of the CPU: the same bits,
// kernel by kernel, and as a whole delayed average.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/ledger.h"

#include "tests/cuda/device.h"
#include "tests/delay/stream_laws.h"
#include "tests/kernels/kernel_testing.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::Shape;

std::vector<float> numbers_of(std::size_t count, std::uint64_t seed) {
  return gradient(Shape::heavy, count, seed);
}

// LedgerPieces of odd lengths, as parameters have them.
LedgerPieces odd_pieces(float* weights, std::size_t count) {
  LedgerPieces pieces;
  std::size_t at = 0;
  for (std::size_t length = 1; at < count; length = 3 * length + 1) {
    const std::size_t here = std::min(length, count - at);
    add_pieces(pieces, weights + at, at, here);
    at += here;
  }
  return pieces;
}

class LedgerOnDevice : public OnDevice {
 protected:
  template <typename T>
  static bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
  }

  // One end of a step, by both; `share` of the open round.
  void compare_move(const LedgerMove& move, float share, std::size_t count, bool odd) {
    SCOPED_TRACE(::testing::Message() << count << " elements, share " << share << ", odd " << odd);
    std::vector<float> w = numbers_of(count, 1), start = numbers_of(count, 2),
                       due = numbers_of(count, 3), open = numbers_of(count, 4), message(count, -1),
                       kept(count, -1);
    if (count > 5 && odd) w[count / 2] = std::numeric_limits<float>::infinity();
    const float part = 0.375f;
    LedgerNumbers numbers{{}, share};
    const OnGpu<float> w2(w, odd ? 1 : 0), start2(start), due2(due), open2(open),
        message2(message, odd ? 3 : 0), kept2(kept), part2({part});
    const OnGpu<LedgerNumbers> numbers2({numbers});
    const LedgerPieces pieces = odd_pieces(w.data(), count), there = odd_pieces(w2.data(), count);
    const OnGpu<LedgerPiece> pieces2(there);
    const LedgerArrays arrays{count, nullptr, start.data(), due.data(), open.data(), nullptr};
    const LedgerArrays arrays2{count, nullptr, start2.data(), due2.data(), open2.data(), nullptr};
    ledger_move_all(move, arrays, pieces, &part, &numbers, message.data());
    ledger_follow_all(move, arrays, &part, &numbers, message.data(), kept.data());
    ledger_move_cuda(move, arrays2, pieces2.data(), there.size(), part2.data(), numbers2.data(),
                     message2.data(), stream);
    ledger_follow_cuda(move, arrays2, part2.data(), numbers2.data(), message2.data(), kept2.data(),
                       stream);
    EXPECT_TRUE(same(w2.download(stream), w));
    EXPECT_TRUE(same(start2.download(stream), start));
    EXPECT_TRUE(same(due2.download(stream), due));
    EXPECT_TRUE(same(open2.download(stream), open));
    if (move.closes) {
      EXPECT_TRUE(same(kept2.download(stream), kept));
    }
    EXPECT_TRUE(same(message2.download(stream), message));
    EXPECT_EQ(numbers2.download(stream)[0].bad, numbers.bad);
  }

  void compare_acknowledge(const LedgerAcknowledge& rule, std::size_t count, bool measures,
                           bool is_void) {
    SCOPED_TRACE(::testing::Message() << count << " elements, measures " << measures);
    std::vector<float> anchor = numbers_of(count, 1), due = numbers_of(count, 2),
                       held = numbers_of(count, 3);
    const std::vector<float> mean = numbers_of(count, 4), own = numbers_of(count, 5),
                             kept = numbers_of(count, 6);
    const float share = 0.7f;
    LedgerNumbers numbers{{3, 4}, 0.5f};
    Verdict verdict;
    verdict.skipped = is_void ? 1 : 0;
    const OnGpu<float> anchor2(anchor), due2(due), held2(held), mean2(mean), own2(own), kept2(kept),
        share2({share});
    const OnGpu<double> sums(std::vector<double>(ledger_scratch(count), -1));
    const OnGpu<LedgerNumbers> numbers2({numbers});
    const OnGpu<float> given({-1});
    const VerdictOnGpu there(verdict);
    const LedgerArrays arrays{count, anchor.data(), nullptr, due.data(), nullptr, held.data()};
    const LedgerArrays arrays2{count, anchor2.data(), nullptr, due2.data(), nullptr, held2.data()};
    ledger_acknowledge_all(rule, arrays, mean.data(), own.data(), kept.data(), &verdict);
    if (measures && !is_void)
      ledger_listen(0.9, ledger_products_all(kept.data(), share, mean.data(), count), numbers.sums);
    ledger_acknowledge_cuda(rule, arrays2, mean2.data(), own2.data(), kept2.data(), share2.data(),
                            measures ? sums.data() : nullptr, there.data(), stream);
    if (measures) ledger_listen_cuda(0.9, sums.data(), numbers2.data(), there.data(), stream);
    ledger_share_cuda(numbers2.data(), given.data(), 4, measures, stream);
    EXPECT_TRUE(same(anchor2.download(stream), anchor));
    EXPECT_TRUE(same(due2.download(stream), due));
    EXPECT_TRUE(same(held2.download(stream), held));
    (void)sums.download(stream);  // for its guards
    EXPECT_EQ(given.download(stream)[0], 0.5f);
    const LedgerNumbers found = numbers2.download(stream)[0];
    EXPECT_EQ(found.sums.with_mean, numbers.sums.with_mean);
    EXPECT_EQ(found.sums.with_self, numbers.sums.with_self);
    EXPECT_EQ(found.share, measures ? ledger_share(numbers.sums, 4) : 0.5f);
  }
};

const std::size_t sizes[] = {0, 1, 2, 31, 33, 4095, 4097, 70001, 1 << 20};

TEST_F(LedgerOnDevice, MovesAsTheCpu) {
  for (const std::size_t count : sizes) {
    for (unsigned bits = 0; bits < 1u << 7; ++bits) {
      if (count > 5000 && bits % 5 != 0) continue;
      const LedgerMove move{.settles_first = (bits & 1) != 0,
                            .floors = (bits & 2) != 0,
                            .takes = (bits & 4) != 0,
                            .closes = (bits & 8) != 0,
                            .settles_last = (bits & 16) != 0,
                            .pace = 0.3f,
                            .has_open = (bits & 32) != 0,
                            .open_clear = (bits & 64) != 0,
                            .gives_back = bits % 11 == 0,
                            .pulls = bits % 7 == 0};
      for (const float share : {1.0f, 0.6f}) {
        if (move.takes && !move.closes && !move.has_open) continue;  // never asked for
        ASSERT_NO_FATAL_FAILURE(compare_move(move, share, count, bits % 3 == 0));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(LedgerOnDevice, AcknowledgesAsTheCpu) {
  for (const std::size_t count : sizes) {
    for (const LedgerAcknowledge& rule : {LedgerAcknowledge{}, LedgerAcknowledge{true, false, 0.3f},
                                          LedgerAcknowledge{false, true, 0}})
      for (const bool measures : {false, true}) {
        ASSERT_NO_FATAL_FAILURE(compare_acknowledge(rule, count, measures, false));
        ASSERT_NO_FATAL_FAILURE(compare_acknowledge(rule, count, measures, true));
        if (HasFailure()) return;
      }
  }
}

TEST_F(LedgerOnDevice, CopiesClipsAndDigestsAsTheCpu) {
  for (const std::size_t count : sizes) {
    const std::vector<float> weights = wild_floats(count, 7);
    const OnGpu<float> w(weights, 1), array(std::vector<float>(count, -1)),
        back(array.download(stream));
    const LedgerPieces from = odd_pieces(w.data(), count), to = odd_pieces(back.data(), count);
    const OnGpu<LedgerPiece> from2(from), to2(to);
    ledger_copy_cuda(LedgerCopy::out, from2.data(), from.size(), array.data(), stream);
    ledger_copy_cuda(LedgerCopy::in, to2.data(), to.size(), array.data(), stream);
    EXPECT_TRUE(same(array.download(stream), weights));
    EXPECT_TRUE(same(back.download(stream), weights));
    const OnGpu<std::uint64_t> digest({1});
    ledger_digest_cuda(array.data(), count, digest.data(), stream);
    EXPECT_EQ(digest.download(stream)[0], ledger_digest_all(weights.data(), count)) << count;
  }
  const double lengths[][2] = {{4, 1}, {4, 9}, {0, 0}, {1e300, 1e-300}, {2, 3}};
  for (const auto& [correction, mean] : lengths) {
    const OnGpu<double> in({correction, mean});
    const OnGpu<float> part({-1});
    ledger_clip_cuda(0.7, in.data(), in.data() + 1, part.data(), stream);
    EXPECT_EQ(part.download(stream)[0], static_cast<float>(ledger_clip(0.7, correction, mean)));
  }
}

class DelayOnDevice : public OnDevice {};

TEST_F(DelayOnDevice, HasTheBitsOfTheCpu) {
  for (const testing::Setting& setting : testing::stream_settings()) {
    const bool products = setting.scheme.starts_with("powersgd");  // within rounding only
    if (products) continue;
    run_local(2, [&](Group& group) {
      testing::law_same_as_delayed({group, nullptr, gpu}, setting, setting.scheme == "dense");
    });
    if (HasFailure()) return;
  }
  run_local(1, [](Group& group) {
    const auto data = make_solo_stream_group(gpu);
    testing::law_same_as_delayed({group, data.get(), gpu},
                                 {"dgc:momentum=0,density=0.05", "soft", 6, 1}, false);
  });
}

TEST_F(DelayOnDevice, TakesUpTheStateOfTheCpu) {
  for (const testing::Setting& setting :
       {testing::Setting{"dense", "soft", 7, 3},
        testing::Setting{"dgc:momentum=0,density=0.05", "soft:book=b", 6, 2}})
    run_local(2, [&](Group& group) {
      testing::law_delayed_state_moves({group, nullptr, gpu}, setting, false);
    });
}

TEST_F(DelayOnDevice, AnUpdateThatIsNotFiniteIsNamed) {
  for (const char* scheme : {"dense", "dgc:momentum=0,density=0.05"})
    run_local(2, [&](Group& group) { testing::law_diverged({group, nullptr, gpu}, scheme); });
}

}  // namespace
}  // namespace thinwire
