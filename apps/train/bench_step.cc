// bench_step.cc: `thinwire bench step`: compares training steps through an exchange with the same
// loop with c10d's own all-reduce of every bucket. Both alternate in the same workers.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "apps/measure.h"
#include "apps/train/learner.h"
#include "apps/train/optimizer.h"
#include "apps/train/settings.h"
#include "apps/train/worker.h"
#include "apps/verb.h"
#include "thinwire/comm/c10d/c10d.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire::apps {
namespace {

using namespace thinwire::train;

struct Plan {
  train::Settings settings;
  std::vector<std::size_t> steps = {10};
  std::vector<std::size_t> pairs = {20};
};

// A training loop without thinwire: an all-reduce as soon as backward has completed a bucket,
// and a division.
class PlainAverage {
 public:
  PlainAverage(const train::Place& place, const GroupOptions& options)
      : backend_(make_gloo_backend({place.host, place.port, place.rank, place.world}, options)) {}

  void submit(std::span<float> gradient) {
    const auto count = static_cast<std::int64_t>(gradient.size());
    std::vector<at::Tensor> tensors = {at::from_blob(gradient.data(), {count}, at::kFloat)};
    under_way_.emplace_back(tensors[0], backend_->allreduce(tensors));
  }

  void finish() {
    for (auto& [gradient, sum] : under_way_) {
      sum->wait();
      gradient.div_(backend_->getSize());
    }
    under_way_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>>> under_way_;
};

class StepBench {
 public:
  StepBench(const Plan& plan, Group& group, const train::Place& place, const Hardware& hardware)
      : plan_(plan),
        group_(group),
        learner_(plan.settings, group, hardware, Seat::host),
        optimizer_(plan.settings, learner_.buckets()),
        exchange_(group, learner_.buckets(), plan.settings.config),
        plain_(place, options_of(plan.settings)) {}

  void run() {
    timed_block(&StepBench::exchange_step);  // touches memory and lets torch make its choices
    timed_block(&StepBench::plain_step);
    std::vector<double> work, floor;
    for (std::size_t pair = 0; pair < plan_.pairs[0]; ++pair) {
      progress("pair " + std::to_string(pair + 1) + " of " + std::to_string(plan_.pairs[0]));
      work.push_back(timed_block(&StepBench::exchange_step));
      floor.push_back(timed_block(&StepBench::plain_step));
    }
    progress("");
    if (group_.rank() == 0) write(work, floor);
    group_.barrier().wait();  // no rank leaves while others still send to it
  }

 private:
  using Step = void (StepBench::*)();

  // Seconds of one step. All ranks begin together, and a step ends on no rank before the others
  // have sent their gradients. So rank 0's clock is valid for all ranks.
  double timed_block(Step step) {
    group_.barrier().wait();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < plan_.steps[0]; ++i) {
      (this->*step)();
      update();
      ++step_;
    }
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(end - start).count() / static_cast<double>(plan_.steps[0]);
  }

  void exchange_step() {
    compute([this](std::uint16_t bucket) { exchange_.submit(bucket, learner_.gradient(bucket)); });
    exchange_.finish();
  }

  void plain_step() {
    compute([this](std::uint16_t bucket) { plain_.submit(learner_.gradient(bucket)); });
    plain_.finish();
  }

  void compute(const Learner::Ready& ready) {
    learner_.compute(step_, ready, [](const char*, Learner::Time, Learner::Time) {});
  }

  void update() {
    for (const Bucket& bucket : learner_.buckets()) {
      optimizer_.step(bucket, static_cast<float>(plan_.settings.rate), learner_.gradient(bucket.id),
                      learner_.weights(bucket.id));
    }
  }

  void write(std::vector<double>& work, std::vector<double>& floor) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < work.size(); ++i) ratios.push_back(work[i] / floor[i]);
    std::size_t parameters = 0;
    for (const Bucket& bucket : learner_.buckets()) parameters += bucket.elements();
    Row row = {{"name", plan_.settings.model},
               {"data", plan_.settings.data},
               {"scheme", plan_.settings.config.str()},
               {"workers", group_.size()},
               {"parameters", parameters},
               {"buckets", learner_.buckets().size()},
               {"steps", plan_.steps[0]}};
    add_timing(row, {.seconds = quantile(work, 0.5),
                     .floor_seconds = quantile(floor, 0.5),
                     .ratio = quantile(ratios, 0.5),
                     .ratio_low = quantile(ratios, 0.25),
                     .ratio_high = quantile(ratios, 0.75),
                     .pairs = work.size()});
    row["floor"] = "the same loop, c10d's all-reduce of every bucket";
    report(columns(), {row}, plan_.settings.json);
  }

  static std::vector<Column> columns() {
    return {{"name", "model", Show::text},
            {"data", "data", Show::text},
            {"scheme", "scheme", Show::text},
            {"workers", "workers", Show::count},
            {"parameters", "parameters", Show::count},
            {"buckets", "buckets", Show::count},
            {"seconds", "step", Show::seconds},
            {"floor_seconds", "floor", Show::seconds},
            {"ratio", "ratio", Show::number},
            {"ratio_low", "25 %", Show::number},
            {"ratio_high", "75 %", Show::number},
            {"floor", "the floor is", Show::text}};
  }

  const Plan& plan_;
  Group& group_;
  Learner learner_;
  Optimizer optimizer_;
  Exchange exchange_;
  PlainAverage plain_;
  std::uint64_t step_ = 0;
};

void run(Plan& plan) {
  check(plan.settings);
  work_or_launch(plan.settings,
                 [&](Group& group, const train::Place& place, const Hardware& hardware) {
                   if (group.size() == 1)
                     throw BadInput("bench step: expected --workers 2 or more");
                   return std::make_unique<StepBench>(plan, group, place, hardware);
                 });
}

}  // namespace

void add_bench_step(CLI::App& parent) {
  const auto plan = std::make_shared<Plan>();
  train::Settings& settings = plan->settings;
  CLI::App* verb =
      add_verb(parent, "step",
               "Measure whole training steps through an exchange, alternating with c10d's own\n"
               "all-reduce of every bucket, in the same workers over Gloo",
               "thinwire bench step --model resnet20 --data digits --workers 4", settings.json);
  describe_step(*verb, settings);
  add_counts(*verb, "--steps", plan->steps, "Steps per block")->expected(1)->type_name("N");
  add_counts(*verb, "--pairs", plan->pairs, "Blocks of each kind")->expected(1)->type_name("N");
  verb->callback([plan] { run(*plan); });
}

}  // namespace thinwire::apps
