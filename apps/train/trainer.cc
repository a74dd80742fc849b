// trainer.cc: the loop: compute and exchange, update, check, report, save.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "apps/train/checkpoint.h"
#include "apps/train/engine.h"
#include "apps/verb.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/replicas.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t traced_steps = 100;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::uint64_t steps_of(const Settings& settings, std::uint64_t steps_per_epoch) {
  if (settings.steps > 0) return settings.steps;
  const double steps = settings.epochs * static_cast<double>(steps_per_epoch);
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(steps)));
}

bool due(std::uint64_t step, std::uint64_t every) { return every > 0 && step % every == 0; }

}  // namespace

Trainer::Trainer(const Settings& settings, Group& group, const Hardware& hardware)
    : settings_(settings),
      group_(group),
      workers_(settings.meeting.workers(group.size())),
      server_(group.rank() >= workers_),
      learner_(settings, group, hardware),
      optimizer_(settings, learner_.buckets()),
      exchange_(group, learner_.buckets(), settings.config,
                {.kind = settings.meeting,
                 .fuse_bytes = static_cast<std::size_t>(settings.fuse_mb * 1e6)}),
      reporter_(settings, group.rank() == 0, learner_.language()),
      steps_(steps_of(settings, learner_.steps_per_epoch())),
      end_(settings.stop > 0 ? std::min(settings.stop, steps_) : steps_) {
  if (!settings.resume.empty()) resume();
  if (step_ >= end_) {
    throw apps::BadInput("--resume: the checkpoint is at step " + std::to_string(step_) +
                         ", this run ends at step " + std::to_string(end_));
  }
  first_ = step_;
  check_replicas();
  watch_exchange();
}

void Trainer::run() {
  std::size_t parameters = 0;
  for (const Bucket& bucket : learner_.buckets()) parameters += bucket.elements();
  reporter_.head(group_.name() + (settings_.cuda ? ", cuda" : ""), workers_, parameters,
                 learner_.buckets().size(), steps_);
  while (step_ < end_) {
    take_step();
    after_step();
  }
  finish();
}

void Trainer::take_step() {
  const auto start = Clock::now();
  const auto submit = [this](std::uint16_t bucket) {
    const std::span<float> gradient = learner_.gradient(bucket);
    if (settings_.fault && *settings_.fault == std::pair(step_, group_.rank()))
      gradient[0] = std::numeric_limits<float>::quiet_NaN();
    exchange_.submit(bucket, gradient);
  };
  const bool traced = !settings_.trace.empty() && step_ - first_ < traced_steps;
  const auto phase = [&](const char* name, Clock::time_point from, Clock::time_point to) {
    if (traced) trace_.compute(name, step_, from, to);
  };
  last_loss_ = server_ ? serve(submit) : learner_.compute(step_, submit, phase);
  const auto computed = Clock::now();
  const StepResult result = exchange_.finish();
  const auto averaged = Clock::now();
  phase("wait", computed, averaged);
  const double rate = settings_.rates.at(step_, steps_, learner_.steps_per_epoch());
  if (!result.skipped) update(static_cast<float>(rate));
  const auto updated = Clock::now();
  phase("update", averaged, updated);

  ++step_;
  sums_.steps += 1;
  sums_.loss += last_loss_;
  sums_.skipped += result.skipped ? 1 : 0;
  sums_.compute += seconds(start, computed);
  sums_.exposed += seconds(computed, averaged);
  sums_.optimizer += seconds(averaged, updated);
  sums_.seconds += seconds(start, updated);
}

// Hands in every bucket as room for the averages.
double Trainer::serve(const Learner::Ready& submit) {
  for (const Bucket& bucket : learner_.buckets()) submit(bucket.id);
  return 0;
}

// Every rank has the same averages, and so makes the same update.
void Trainer::update(float rate) {
  const std::vector<Bucket>& buckets = learner_.buckets();
  if (settings_.clip_average) {
    double sum = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const std::span<float> average = learner_.gradient(i);
      sum += squared_norm(average.data(), average.size());
    }
    const double norm = std::sqrt(sum);
    if (norm > settings_.clip) {
      const auto scale = static_cast<float>(settings_.clip / norm);
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        for (float& value : learner_.gradient(i)) value *= scale;
      }
    }
  }
  for (const Bucket& bucket : buckets) {
    optimizer_.step(bucket, rate, learner_.gradient(bucket.id), learner_.weights(bucket.id));
  }
}

void Trainer::after_step() {
  if (step_ == first_ + traced_steps) exchange_.observe({});
  reporter_.bar(step_, end_, last_loss_, tally());
  if (due(step_, settings_.check_every)) check_replicas();
  const std::uint64_t row_every =
      settings_.report_every > 0 ? settings_.report_every : std::max<std::uint64_t>(1, steps_ / 20);
  const bool evaluate = due(step_, settings_.eval_every) || step_ == end_;
  if (evaluate || due(step_, row_every)) write_row(evaluate);
  if (due(step_, settings_.save_every)) save();
}

void Trainer::check_replicas() {
  std::vector<Replica> replicas;
  for (const Bucket& bucket : learner_.buckets()) {
    const std::span<const float> weights = learner_.weights(bucket.id);
    for (const Parameter& parameter : bucket.parameters) {
      replicas.push_back(
          {parameter.name, std::as_bytes(weights.subspan(parameter.offset, parameter.count))});
    }
  }
  thinwire::check_replicas(group_, replicas);
}

void Trainer::watch_exchange() {
  if (settings_.trace.empty() || group_.rank() != 0) return;
  exchange_.observe([this](const Stage& stage) {
    // step_ stands still while the exchange works: finish() comes before its next change.
    trace_.stage(stage.name, step_, stage.bucket, stage.begin, stage.end);
  });
}

Tally Trainer::tally() const {
  const Report report = exchange_.report();
  Tally all = sums_;
  all.payload_bytes = static_cast<double>(report.payload_bytes);
  all.dense_bytes = static_cast<double>(report.dense_bytes);
  all.sent_bytes = static_cast<double>(report.traffic.sent);
  all.encode = report.encode_seconds;
  all.wait = report.wait_seconds;
  all.decode = report.decode_seconds;
  return all;
}

Tally Trainer::mean_tally() {
  Tally mine = tally();
  if (server_) {  // the bytes that it sends are the workers' costs, its time is not
    mine = {};
    mine.payload_bytes = static_cast<double>(exchange_.report().payload_bytes);
    mine.sent_bytes = static_cast<double>(exchange_.report().traffic.sent);
  }
  return Tally::from(sum_over(group_, mine.values()), 1.0 / workers_);
}

void Trainer::write_row(bool evaluate) {
  const Tally now = mean_tally();
  apps::Row row = {
      {"step", step_},
      {"epoch", static_cast<double>(step_) / static_cast<double>(learner_.steps_per_epoch())},
      {"rate", settings_.rates.at(step_ - 1, steps_, learner_.steps_per_epoch())}};
  row.update(row_of(now.minus(row_start_)));
  row["bytes_total"] = now.payload_bytes;
  row["seconds_total"] = now.seconds;
  row_start_ = now;
  if (evaluate) {
    score_ = learner_.evaluate();
    row["test_loss"] = score_.loss;
    if (learner_.language()) row["perplexity"] = std::exp(score_.loss);
    row["accuracy"] = score_.accuracy;
  }
  last_row_ = row;
  reporter_.row(std::move(row));
}

void Trainer::finish() {
  check_replicas();
  if (!settings_.save.empty() && saved_ != step_) save();
  std::uint32_t checksum = 0;
  for (const Bucket& bucket : learner_.buckets()) {
    const std::span<const float> weights = learner_.weights(bucket.id);
    checksum = checksum * 31 + crc32c(std::as_bytes(weights));
  }
  char text[16];
  std::snprintf(text, sizeof text, "%08x", checksum);

  apps::Row final = {{"steps", step_}};
  final.update(row_of(mean_tally()));
  final["loss"] = last_row_.at("loss");
  final["last_ratio"] = last_row_.at("ratio");
  for (const char* key : {"test_loss", "perplexity", "accuracy"}) {
    if (last_row_.contains(key)) final[key] = last_row_.at(key);
  }
  final["replicas_identical"] = true;  // or check_replicas() had thrown
  final["checksum"] = text;
  apps::Row about = apps::about_machine();
  about["engine"] = group_.name();
  about["device"] = settings_.device;
  about["emulated"] = settings_.emulated.has_value();
  for (const auto& [flag, value] : settings_.identity(group_.size()))
    about["settings"][flag] = value;
  reporter_.end(final, about);
  if (!settings_.trace.empty() && group_.rank() == 0) trace_.write(settings_.trace, 0);
  group_.barrier().wait();  // nobody leaves while others still speak to it
}

// Everything that the steps to come depend on.
void Trainer::visit_state(StateVisitor& visitor) {
  auto step = static_cast<double>(step_);
  visitor.number("training/step", step, Share::replicated);
  step_ = static_cast<std::uint64_t>(step);
  for (const Bucket& bucket : learner_.buckets()) {
    visit_by_parameter(visitor, bucket, "weights", learner_.weights(bucket.id), Share::replicated);
  }
  learner_.visit_buffers(visitor);
  optimizer_.visit_state(visitor, learner_.buckets());
  exchange_.visit_state(visitor);
}

void Trainer::save() {
  State state;
  StateSaver saver(state);
  visit_state(saver);
  save_checkpoint(group_, settings_.save, std::move(state), settings_.identity(group_.size()));
  saved_ = step_;
}

void Trainer::resume() {
  const State state = load_checkpoint(group_, settings_.resume, settings_.identity(group_.size()));
  StateLoader loader(state);
  try {
    visit_state(loader);
  } catch (const Error& error) {
    throw apps::BadInput(std::string("--resume: ") + error.what());
  }
  const double sum = sum_over(group_, {static_cast<double>(step_)})[0];
  if (sum != static_cast<double>(step_) * group_.size()) {
    throw apps::BadInput("--resume: the files of '" + settings_.resume +
                         "' are of different steps, rank " + std::to_string(group_.rank()) +
                         "'s of step " + std::to_string(step_) + "; use another checkpoint");
  }
}

}  // namespace thinwire::train
