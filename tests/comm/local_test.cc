// local_test.cc: the laws of groups on threads, and the errors that ranks get when one fails.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/comm/group_laws.h"

namespace thinwire {
namespace {

using namespace std::chrono_literals;

class Local : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Local, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(Local, AllReduce) { run_local(GetParam(), laws::all_reduce_laws); }
TEST_P(Local, Gather) { run_local(GetParam(), laws::gather_laws); }
TEST_P(Local, Broadcast) { run_local(GetParam(), laws::broadcast_laws); }
TEST_P(Local, Order) { run_local(GetParam(), laws::order_laws); }
TEST_P(Local, SumsInTheOrderOfShares) {
  run_local(GetParam(), [](Group& group) {
    laws::sums_add_in_the_order_of_shares(group, 2);  // some shares are empty
    laws::sums_add_in_the_order_of_shares(group, 50'001);
  });
}

// Sums in rank order: the only result that does not depend on who arrives when.
TEST_P(Local, ReducesInRankOrder) {
  run_local(GetParam(), [](Group& group) {
    // Ranks 0 and 1 cancel exactly, but only if they are added one after the other.
    const auto value = [](int rank) {
      return rank == 0 ? 1e8f : rank == 1 ? -1e8f : 0.3f + static_cast<float>(rank);
    };
    float expected = value(0);
    for (int r = 1; r < group.size(); ++r) expected += value(r);
    for (int round = 0; round < 20; ++round) {
      float sum = value(group.rank());
      if ((group.rank() + round) % 3 == 0) std::this_thread::sleep_for(1ms);
      group.all_reduce(std::as_writable_bytes(std::span(&sum, 1)), DType::f32, ReduceOp::sum, {})
          .wait();
      laws::require(group, sum == expected, "rank order: ", sum, " instead of ", expected);
    }
  });
}

// The error text of each rank; empty if it succeeded.
std::vector<std::string> errors_of(int size, const std::function<void(Group&)>& body,
                                   std::chrono::milliseconds timeout = 10s) {
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  const auto noting = [&](Group& group) {
    try {
      body(group);
    } catch (const std::exception& error) {
      texts[laws::rank_of(group)] = error.what();
      throw;
    }
  };
  try {
    run_local(size, noting, {.timeout = timeout});
  } catch (const std::exception&) {
  }
  return texts;
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

// Runs `usual` on all ranks except the last, and `odd` there. Every rank must name the odd one and
// both descriptions.
void expect_mismatch(const std::function<Pending(Group&)>& usual,
                     const std::function<Pending(Group&)>& odd, const std::string& usual_text,
                     const std::string& odd_text) {
  for (const int size : {2, 3, 8}) {
    const auto texts = errors_of(size, [&](Group& group) {
      group.barrier().wait();
      (group.rank() == size - 1 ? odd(group) : usual(group)).wait();
      group.barrier().wait();  // a rank without an error so far must get one here
    });
    for (const auto& text : texts)
      expect_parts(text, {usual_text, odd_text, "rank " + std::to_string(size - 1), "#1 differs"});
  }
}

// The memory of these tests is per thread, so that a late rank never touches freed bytes.
laws::Buffer& scratch(std::size_t count) {
  thread_local laws::Buffer buffer;
  buffer.assign(count, std::byte{});
  return buffer;
}

std::function<Pending(Group&)> reduce(std::size_t bytes, DType type, ReduceOp op) {
  return [=](Group& group) { return group.all_reduce(scratch(bytes), type, op, {}); };
}

std::function<Pending(Group&)> broadcast(std::size_t bytes, int root) {
  return [=](Group& group) { return group.broadcast(scratch(bytes), root, {}); };
}

std::function<Pending(Group&)> gather(std::size_t slot) {
  return [=](Group& group) {
    thread_local std::vector<std::size_t> sizes;
    sizes.assign(laws::size_of_group(group), 0);
    return group.all_gather({}, slot, scratch(slot * sizes.size()), sizes, {});
  };
}

TEST(LocalMismatch, Bytes) {
  expect_mismatch(reduce(8, DType::f32, ReduceOp::sum), reduce(16, DType::f32, ReduceOp::sum),
                  "all_reduce of 8 bytes, f32 sum", "all_reduce of 16 bytes, f32 sum");
}

TEST(LocalMismatch, Type) {
  expect_mismatch(reduce(8, DType::f32, ReduceOp::sum), reduce(8, DType::i32, ReduceOp::sum),
                  "f32 sum", "i32 sum");
}

TEST(LocalMismatch, Operation) {
  expect_mismatch(reduce(8, DType::f32, ReduceOp::sum), reduce(8, DType::f32, ReduceOp::max),
                  "f32 sum", "f32 max");
}

TEST(LocalMismatch, Root) {
  expect_mismatch(broadcast(5, 0), broadcast(5, 1), "broadcast of 5 bytes from rank 0",
                  "broadcast of 5 bytes from rank 1");
}

TEST(LocalMismatch, Slot) {
  expect_mismatch(gather(5), gather(6), "all_gather with slots of 5 bytes",
                  "all_gather with slots of 6 bytes");
}

TEST(LocalMismatch, Kind) {
  expect_mismatch(
      gather(5), [](Group& group) { return group.barrier(); }, "calls all_gather", "calls barrier");
}

TEST(LocalFailure, SilentRankIsNamed) {
  const auto texts = errors_of(
      4,
      [](Group& group) {
        group.barrier().wait();
        if (group.rank() == 2) std::this_thread::sleep_for(400ms);
        group.barrier().wait();
      },
      100ms);
  for (const auto& text : texts)
    expect_parts(text, {"barrier #1", "timed out after 100 ms waiting for rank 2;"});
  for (std::size_t r = 0; r < texts.size(); ++r)
    expect_parts(texts[r], {"rank " + std::to_string(r) + ": barrier #1"});
}

TEST(LocalFailure, AllSilentRanksAreNamed) {
  const auto texts = errors_of(
      5,
      [](Group& group) {
        if (group.rank() == 1 || group.rank() == 4) std::this_thread::sleep_for(300ms);
        group.barrier().wait();
      },
      50ms);
  expect_parts(texts[0], {"waiting for rank 1, rank 4;"});
}

TEST(LocalFailure, FailingRankIsNamedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto texts = errors_of(4, [](Group& group) {
    group.barrier().wait();
    if (group.rank() == 2) throw std::runtime_error("out of luck");
    group.barrier().wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  for (const int r : {0, 1, 3})
    expect_parts(texts[static_cast<std::size_t>(r)], {"barrier #1", "rank 2 failed: out of luck"});
  EXPECT_EQ(texts[2], "out of luck");
}

// The rank fails with a collective in flight, whose buffer dies with its stack.
TEST(LocalFailure, UnwindingRankTakesItsBuffersOut) {
  for (int round = 0; round < 50; ++round) {
    const auto texts = errors_of(3, [&](Group& group) {
      std::vector<float> data(1000, 1.0f);
      const Bytes bytes = std::as_writable_bytes(std::span(data));
      if (group.rank() == round % 3) {
        const Pending lost = group.all_reduce(bytes, DType::f32, ReduceOp::sum, {});
        throw std::runtime_error("out of luck");
      }
      if (round % 2) std::this_thread::sleep_for(1ms);
      group.all_reduce(bytes, DType::f32, ReduceOp::sum, {}).wait();
      group.barrier().wait();
    });
    for (const auto& text : texts) expect_parts(text, {"out of luck"});
  }
}

TEST(LocalFailure, RankThatEndsEarlyIsNamedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto texts = errors_of(3, [](Group& group) {
    if (group.rank() != 1) group.barrier().wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  expect_parts(texts[0], {"rank 1 left before barrier #0"});
  expect_parts(texts[2], {"rank 1 left before barrier #0"});
}

TEST(LocalFailure, EverythingAfterAFailureThrows) {
  auto groups = make_local_groups(2, {.timeout = 20ms});
  EXPECT_THROW(groups[0]->barrier().wait(), Error);
  EXPECT_THROW((void)groups[0]->barrier(), Error);
  EXPECT_THROW((void)groups[1]->barrier(), Error);
}

TEST(LocalFailure, WaitThrowsAgain) {
  auto groups = make_local_groups(2, {.timeout = 20ms});
  Pending pending = groups[0]->barrier();
  EXPECT_THROW(pending.wait(), Error);
  EXPECT_TRUE(pending.done());
  EXPECT_THROW(pending.wait(), Error);
}

// A late rank must not write to a rank that gave up.
TEST(LocalFailure, LateRankDoesNotTouchBuffersOfThoseWhoLeft) {
  auto groups = make_local_groups(2, {.timeout = 20ms});
  {
    std::vector<float> gone(1000);
    const Bytes bytes = std::as_writable_bytes(std::span(gone));
    EXPECT_THROW(groups[0]->all_reduce(bytes, DType::f32, ReduceOp::sum, {}).wait(), Error);
  }
  std::vector<float> late(1000, 3.0f);
  const Bytes bytes = std::as_writable_bytes(std::span(late));
  EXPECT_THROW(groups[1]->all_reduce(bytes, DType::f32, ReduceOp::sum, {}).wait(), Error);
  EXPECT_EQ(late, std::vector<float>(1000, 3.0f));
}

TEST(LocalFailure, BadArgumentsFailEverywhere) {
  const auto texts = errors_of(2, [](Group& group) {
    laws::Buffer mine(9), slots(16);
    std::vector<std::size_t> sizes(2);
    const ConstBytes sent = ConstBytes(mine).first(group.rank() == 1 ? 9 : 8);
    group.all_gather(sent, 8, slots, sizes, {}).wait();
  });
  expect_parts(texts[0], {"rank 1 wants to send 9 bytes to a slot of 8"});
  expect_parts(texts[1], {"rank 1 wants to send 9 bytes to a slot of 8"});
  EXPECT_THROW(run_local(2, [](Group& group) { broadcast(5, 2)(group).wait(); }), Error);
  EXPECT_THROW(run_local(2, [](Group& g) { reduce(6, DType::f32, ReduceOp::sum)(g).wait(); }),
               Error);
  EXPECT_THROW(make_local_groups(0), Error);
}

TEST(RunLocal, RethrowsTheLowestRank) {
  const auto body = [](Group& group) {
    if (group.rank() > 0) throw std::runtime_error("rank " + std::to_string(group.rank()));
  };
  try {
    run_local(3, body);
    FAIL() << "nothing thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1");
  }
}

// The exchange makes its group on one thread and uses it on another.
TEST(Local, CallsMayComeFromAnotherThread) {
  run_local(3, [](Group& group) {
    std::int32_t sum = 1;
    Pending pending;
    std::thread([&] {
      const Bytes bytes = std::as_writable_bytes(std::span(&sum, 1));
      pending = group.all_reduce(bytes, DType::i32, ReduceOp::sum, {});
    }).join();
    std::thread([&] { pending.wait(); }).join();
    laws::require(group, sum == 3, "sum from other threads");
  });
}

TEST(Local, GroupsMayOutliveEachOther) {
  auto groups = make_local_groups(2);
  Pending first = groups[0]->barrier();
  groups[1]->barrier().wait();
  groups.pop_back();
  first.wait();
  EXPECT_THROW(groups[0]->barrier().wait(), Error);
}

}  // namespace
}  // namespace thinwire
