// base.h: what the groups of this engine have in common: a world, calls that are issued in it, and
// patterns (begin() posts, finish() ends) that carry them out. Internal to the engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "thinwire/comm/c10d/world.h"
#include "thinwire/core/error.h"

namespace thinwire::torch_engine {

class C10dWork final : public Pending::Work {
 public:
  C10dWork(std::shared_ptr<World> world, std::shared_ptr<Job> job)
      : world_(std::move(world)), job_(std::move(job)) {}

  // Dropped without wait(): buffers may go now, so end it first; while an exception passes, only as
  // long as healthy ranks would need.
  ~C10dWork() override {
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    try {
      if (unwinding && !world_->done_within(*job_, world_->grace()))
        world_->break_off("rank " + std::to_string(world_->rank()) + ": left by an exception");
      wait();
    } catch (const Error&) {  // the world remembers: the next call throws
    }
  }

  // The messages have their time limits; so this ends.
  void wait() override { world_->finish(*job_); }

  bool done() override { return world_->done_within(*job_, std::chrono::milliseconds(0)); }

  Cost cost() const override { return job_->cost; }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Job> job_;
  const int exceptions_ = std::uncaught_exceptions();
};

class BaseGroup : public Group {
 public:
  explicit BaseGroup(std::shared_ptr<World> world) : world_(std::move(world)) {}

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  Traffic traffic() const override { return world_->traffic(); }

 protected:
  template <typename Check>
  std::shared_ptr<Job> issue(const Call& call, Check check) {
    auto job = world_->issue(call);
    try {
      check();
    } catch (const Error& error) {  // others must not wait for a call that never comes
      world_->refuse(job->position, error.what());
    }
    return job;
  }

  // The pattern lives as long as the job has to be finished.
  template <typename Pattern, typename Begin>
  Pending launch(const std::shared_ptr<Job>& job, std::shared_ptr<Pattern> pattern, Begin begin) {
    if (size() > 1) job->finish = [pattern] { pattern->finish(); };
    job->has_steps = pattern->has_steps();
    world_->launch(job, begin);
    return Pending(std::make_unique<C10dWork>(world_, job));
  }

  template <typename Pattern, typename... Arguments>
  Pending launch(const std::shared_ptr<Job>& job, const Arguments&... arguments) {
    const auto pattern = std::make_shared<Pattern>(*world_, *job, arguments...);
    return launch(job, pattern, [&] { pattern->begin(); });
  }

  std::shared_ptr<World> world_;
};

}  // namespace thinwire::torch_engine
