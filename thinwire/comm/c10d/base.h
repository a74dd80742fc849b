// base.h: what all groups of this engine share: a world, the calls issued in it, and the patterns
// that carry out a call (begin() posts messages, finish() completes them). Internal to the engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "thinwire/comm/c10d/world.h"
#include "thinwire/comm/verbs.h"
#include "thinwire/core/error.h"

namespace thinwire::torch_engine {

class C10dWork final : public Pending::Work {
 public:
  C10dWork(std::shared_ptr<World> world, std::shared_ptr<Job> job)
      : world_(std::move(world)), job_(std::move(job)) {}

  // The caller may free the buffers after dropping a work without wait(), so complete it first.
  // While an exception unwinds, wait only as long as healthy ranks would need.
  ~C10dWork() override {
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    try {
      if (unwinding && !world_->done_within(*job_, world_->grace()))
        world_->break_off("rank " + std::to_string(world_->rank()) + ": left by an exception");
      wait();
    } catch (const Error&) {  // the world remembers: the next call throws
    }
  }

  // Always returns: every message has a time limit.
  void wait() override { world_->finish(*job_); }

  bool done() override { return world_->done_within(*job_, std::chrono::milliseconds(0)); }

  Cost cost() const override { return job_->cost; }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Job> job_;
  const int exceptions_ = std::uncaught_exceptions();
};

class BaseGroup : public EngineGroup {
 public:
  using CostOf = Cost(const Call& call, const Operands& operands, int rank, int ranks);

  BaseGroup(std::shared_ptr<World> world, CostOf* cost_of)
      : world_(std::move(world)), cost_of_(cost_of) {}

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  Traffic traffic() const override { return world_->traffic(); }

 protected:
  // The pattern lives until the job is finished.
  template <typename Pattern, typename... Arguments>
  void launch(const std::shared_ptr<Job>& job, const Arguments&... arguments) {
    const auto pattern = std::make_shared<Pattern>(*world_, *job, arguments...);
    if (size() > 1) job->finish = [pattern] { pattern->finish(); };
    job->has_steps = pattern->has_steps();
    world_->launch(job, [&] { pattern->begin(); });
  }

  std::shared_ptr<World> world_;

 private:
  // Launches the pattern of the job's call.
  virtual void carry_out(const std::shared_ptr<Job>& job, const Operands& operands) = 0;

  Pending start(const Call& call, const Operands& operands) final {
    const auto job = world_->issue(call);
    try {
      check(rank(), size(), call, operands);
    } catch (const Error& error) {  // other ranks must not wait for a call that never comes
      world_->refuse(job->position, error.what());
    }
    job->price = [=, of = cost_of_, me = rank(), n = size()] { return of(call, operands, me, n); };
    carry_out(job, operands);
    return Pending(std::make_unique<C10dWork>(world_, job));
  }

  CostOf* const cost_of_;
};

}  // namespace thinwire::torch_engine
