// delayed_test.cc: delayed averaging among threads of this process: anchors equal bit for bit,
// exact resume with messages in flight, no waiting while a message is young, clear errors.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/delayed.h"

#include <gtest/gtest.h>

#include "tests/delay/training.h"

namespace thinwire::testing {
namespace {

TEST(Delayed, AnchorsAreEqualAfterDrain) {
  for (const int ranks : {2, 4, 8}) {
    if (sanitized && ranks > 2) break;  // enough threads, and a sanitizer multiplies their time
    for (const Setting& setting : settings())
      run_local(ranks, [&](Group& group) { law_anchors(group, setting); });
  }
}

TEST(Delayed, ResumesExactlyWithMessagesUnderWay) {
  for (const Setting& setting : settings())
    run_local(sanitized ? 2 : 3, [&](Group& group) { law_resume(group, setting); });
}

TEST(Delayed, EverySchemeTravels) {
  for (const Scheme* scheme : schemes())
    run_local(2, [&](Group& group) { law_scheme(group, *scheme); });
}

TEST(Delayed, WithoutDelayItIsSynchronousTraining) {
  run_local(3, [&](Group& group) { law_synchronous(group); });
}

TEST(Delayed, NeverWaitsForYoungMessages) {
  run_local(2, [&](Group& group) { law_never_waits(group); });
}

TEST(Delayed, MomentsAreAveragedAndStayPositive) {
  run_local(4, [&](Group& group) {
    Task task(group);
    Arrays moments = views(task.moments);
    DelayOptions options;
    options.delay = 6;
    DelayedAverage delayed(group, task.buckets, views(task.weights), Config::parse("dense"),
                           options, moments);
    for (std::uint64_t step = 0; step < 40; ++step) {
      task.step(step);
      for (std::size_t b = 0; b < moments.size(); ++b) {
        for (std::size_t i = 0; i < moments[b].size(); ++i) {
          const float g = task.gradients[b][i];
          moments[b][i] = 0.9f * moments[b][i] + 0.1f * g * g * static_cast<float>(group.rank());
        }
      }
      delayed.finish_step();
      for (const auto& array : moments) {
        for (const float value : array) ASSERT_GE(value, 0);
      }
    }
    delayed.drain();
    check_equal(group, moments);
  });
}

TEST(Delayed, AMeasuredDelayIsTheSameOnAllRanks) {
  run_local(3, [&](Group& group) {
    const auto slow = emulate_link(group, Link::parse("inf,5ms"));
    Task task(group);
    DelayOptions options;
    options.parse_delay("auto:50");
    DelayedAverage delayed(*slow, task.buckets, views(task.weights), Config::parse("dense"),
                           options);
    for (std::uint64_t step = 0; step < 80; ++step) {
      task.step(step);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      delayed.finish_step();
    }
    EXPECT_LT(delayed.delay(), 50u);
    EXPECT_GE(delayed.delay(), 2u);
    std::vector<float> both = {static_cast<float>(delayed.delay()),
                               -static_cast<float>(delayed.delay())};
    {
      const auto lock = delayed.hold();
      slow->all_reduce(std::as_writable_bytes(std::span(both)), DType::f32, ReduceOp::max, {})
          .wait();
    }
    EXPECT_EQ(both[0], -both[1]);
    delayed.drain();
    check_equal(group, views(task.weights));
  });
}

TEST(Delayed, SaysWhatClashes) {
  run_local(1, [&](Group& group) {
    Task task(group);
    const auto error = [&](const char* scheme, const char* correction, std::uint64_t delay) {
      DelayOptions options;
      options.delay = delay;
      options.parse_correction(correction);
      try {
        DelayedAverage(group, task.buckets, views(task.weights), Config::parse(scheme), options);
      } catch (const Error& failure) {
        return std::string(failure.what());
      }
      return std::string();
    };
    EXPECT_NE(error("dgc", "ledger", 4).find("give it momentum=0"), std::string::npos);
    EXPECT_NE(error("powersgd", "ledger", 4).find("only one message"), std::string::npos);
    EXPECT_NE(error("qsgd", "ledger:book=b", 4).find("book=a"), std::string::npos);
    EXPECT_NE(error("dense", "published", 4).find("SGD"), std::string::npos);
    EXPECT_EQ(error("dgc:momentum=0", "ledger", 4), "");
  });
}

TEST(Delayed, AnAnchorThatDiffersIsNamed) {
  try {
    run_local(3, [&](Group& group) {
      Task task(group);
      DelayOptions options;
      options.delay = 3;
      options.check_every = 10;
      DelayedAverage delayed(group, task.buckets, views(task.weights), Config::parse("dense"),
                             options);
      for (std::uint64_t step = 0; step < 40; ++step) {
        task.step(step);
        if (step == 15 && group.rank() == 2) delayed.anchor(1)[7] += 1e-6f;
        delayed.finish_step();
      }
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("bucket 1: rank 2 has another anchor"),
              std::string::npos)
        << error.what();
  }
}

TEST(Delayed, AnInfiniteWeightEndsWithASentence) {
  try {
    run_local(2, [&](Group& group) {
      Task task(group);
      DelayOptions options;
      options.delay = 2;
      DelayedAverage delayed(group, task.buckets, views(task.weights), Config::parse("topk"),
                             options);
      for (std::uint64_t step = 0; step < 20; ++step) {
        task.step(step);
        if (step == 5 && group.rank() == 1)
          task.weights[0][0] = std::numeric_limits<float>::infinity();
        delayed.finish_step();
      }
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("diverged"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace thinwire::testing
