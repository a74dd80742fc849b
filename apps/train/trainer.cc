// trainer.cc: the training loop: compute and exchange, update, check, report, save.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "apps/train/checkpoint.h"
#include "apps/train/clock.h"
#include "apps/train/engine.h"
#include "apps/train/placed.h"
#include "apps/verb.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/replicas.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::train {
namespace {

constexpr std::uint64_t traced_steps = 100;
// A training has failed if it skips this many steps in a row at its end, or more than nine tenths
// of at least this many. A single skipped step is normal with AMP; ten in a row are not.
constexpr std::uint64_t too_many_skipped = 10;

std::uint64_t steps_of(const Settings& settings, std::uint64_t steps_per_epoch) {
  if (settings.steps > 0) return settings.steps;
  const double steps = settings.epochs * static_cast<double>(steps_per_epoch);
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(steps)));
}

void spoil(TensorView gradient) {
  gradient.count = 1;
  copy_from_host(gradient, std::vector{std::numeric_limits<float>::quiet_NaN()});
}

bool due(std::uint64_t step, std::uint64_t every) { return every > 0 && step % every == 0; }

// Attempts every write at the end, then reports the failures.
class Attempts {
 public:
  template <typename Do>
  void add(Do attempt) {
    try {
      attempt();
    } catch (const std::exception& error) {
      failures_ += (failures_.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  void check() const {
    if (!failures_.empty()) throw Error(failures_);
  }

 private:
  std::string failures_;
};

}  // namespace

Trainer::Trainer(const Settings& settings, Group& group, const Place& place,
                 const Hardware& hardware)
    : settings_(settings),
      group_(group),
      place_(place),
      crew_(crew_of(settings, group)),
      learner_(settings, group, hardware, seat_of(settings)),
      reporter_(settings, group.rank() == 0, learner_.domain()),
      steps_(steps_of(settings, learner_.steps_per_epoch())),
      end_(settings.stop > 0 ? std::min(settings.stop, steps_) : steps_),
      sums_(crew_.size()),
      computed_(crew_.size()),
      estimate_(crew_) {
  average(hardware);
  if (!settings.resume.empty()) resume();
  if (step_ >= end_) {
    throw apps::BadInput("--resume: the checkpoint is at step " + std::to_string(step_) +
                         ", this run ends at step " + std::to_string(end_));
  }
  first_ = step_;
  check_replicas();
  watch_exchange();
}

void Trainer::average(const Hardware& hardware) {
  engine_ = settings_.virtual_workers > 0 ? "virtual" : group_.name();
  if (seat_of(settings_) == Seat::model) {
    auto data = make_data_group(settings_, place_, hardware.gpu);
    if (data && group_.size() > 1) engine_ = data->name();
    const auto make = settings_.delayed ? average_late_in_streams : average_in_streams;
    averaging_ = make(settings_, group_, std::move(data), learner_);
  } else if (settings_.delayed) {
    averaging_ = average_late(settings_, group_, learner_,
                              [this](std::uint64_t step) { return rate_at(step); });
  } else if (settings_.virtual_workers > 0) {
    averaging_ = average_virtually(settings_, learner_);
  } else {
    averaging_ = average_gradients(settings_, group_, learner_);
  }
}

void Trainer::run() {
  std::size_t parameters = 0;
  for (const Bucket& bucket : learner_.buckets()) parameters += bucket.elements();
  reporter_.head(engine_, crew_.workers, parameters, learner_.buckets().size(), steps_);
  stop_.emplace(settings_, place_);
  while (step_ < end_ && goes_on()) {
    take_step();
    after_step();
  }
  const bool early = step_ < end_;
  if (early) stop_early();
  finish();
  if (early) throw apps::Interrupted(how_to_go_on());
  check_skips();
}

bool Trainer::goes_on() {
  bool allowed = true;
  on_the_clock([&] { allowed = stop_->allows(step_); });
  return allowed;
}

// Does not evaluate: a user who interrupts wants the training to end.
void Trainer::stop_early() {
  if (step_ == first_)
    throw apps::Interrupted("interrupted before the first step; there is nothing to save");
  on_the_clock([this] { averaging_->await_arrivals(); });
  if (last_row_.is_null() || last_row_.at("step") != step_) write_row(false);
}

std::string Trainer::how_to_go_on() const {
  const std::string first = "'" + checkpoint_file(settings_.save, 0) + "'",
                    last = "'" + checkpoint_file(settings_.save, crew_.world - 1) + "'";
  return "interrupted after step " + std::to_string(step_) + " of " + std::to_string(steps_) +
         "; the checkpoint is " + first + (crew_.world > 1 ? " to " + last : "") +
         "; to continue, repeat the command with --resume " + settings_.save;
}

void Trainer::check_skips() const {
  const auto steps = static_cast<std::uint64_t>(sums_[0].steps),
             skipped = static_cast<std::uint64_t>(sums_[0].skipped);
  const bool nearly_all = steps >= too_many_skipped && 10 * skipped > 9 * steps;
  if (!nearly_all && skipped_in_a_row_ < too_many_skipped) return;
  const std::string which =
      nearly_all ? std::to_string(skipped) + " of " + std::to_string(steps)
                 : "the last " + std::to_string(skipped_in_a_row_) + " of " + std::to_string(steps);
  fail(which, " steps were skipped: their gradients were not finite, and the weights did ",
       "not change; lower --lr (now ", settings_.rate, ") or --clip the gradient");
}

void Trainer::take_step() {
  const auto start = Clock::now();
  const bool traced = !settings_.trace.empty() && step_ - first_ < traced_steps;
  const auto phase = [&](const char* name, Clock::time_point from, Clock::time_point to) {
    if (traced) trace_.compute(name, step_, from, to);
  };
  for (int rank = crew_.begin; rank < crew_.end; ++rank) {
    const double loss = compute(rank, phase);
    sums(rank).loss += loss;
    if (rank == crew_.begin) last_loss_ = loss;
  }
  const Averaging::Result result = averaging_->finish(rate_at(step_), phase);
  const double time = seconds(start, Clock::now());
  const double estimated = estimates(settings_) ? estimate(result) : 0;

  ++step_;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  for (Tally& sums : sums_) {
    sums.steps += 1;
    sums.skipped += result.skipped ? 1 : 0;
    sums.exposed += result.exposed;
    sums.optimizer += result.update;
    sums.seconds += time;
    sums.link += result.link;
    sums.estimated += estimated;
  }
}

// Forward and backward of one rank. Returns its loss.
double Trainer::compute(int rank, const Learner::Phase& phase) {
  const auto submit = [&](std::uint16_t bucket) {
    if (settings_.fault && *settings_.fault == std::pair(step_, rank))
      spoil(learner_.gradient_view(bucket));
    averaging_->submit(bucket);
  };
  learner_.turn_to(rank);
  const Learner::Computed its =
      crew_.serves(rank) ? serve(submit) : learner_.compute(step_, submit, phase);
  computed_[crew_.place(rank)] = its.seconds;
  sums(rank).compute += its.seconds;
  return its.loss;
}

double Trainer::estimate(const Averaging::Result& result) {
  for (int rank = crew_.begin; rank < crew_.end; ++rank)
    estimate_.add(rank, computed_[crew_.place(rank)], report_of(rank));
  return estimate_.seconds(result.exposed, result.update, result.link);
}

// Submits every bucket as memory for the averages.
Learner::Computed Trainer::serve(const Learner::Ready& submit) {
  for (const Bucket& bucket : learner_.buckets()) submit(bucket.id);
  return {};
}

float Trainer::rate_at(std::uint64_t step) const {
  return static_cast<float>(settings_.rates.at(step, steps_, learner_.steps_per_epoch()));
}

void Trainer::after_step() {
  if (step_ == first_ + traced_steps) averaging_->observe({});
  const bool evaluate = due(step_, settings_.eval_every) || step_ == end_;
  const bool saves = due(step_, settings_.save_every);
  if (step_ == steps_) {
    on_the_clock([this] { averaging_->complete(); });
  } else if (evaluate || saves) {
    on_the_clock([this] { averaging_->await_arrivals(); });
  }
  reporter_.bar(step_, end_, last_loss_, tally(crew_.begin));
  if (averaging_->in_step() && due(step_, settings_.check_every)) check_replicas();
  const std::uint64_t row_every =
      settings_.report_every > 0 ? settings_.report_every : std::max<std::uint64_t>(1, steps_ / 20);
  if (evaluate || due(step_, row_every)) write_row(evaluate);
  if (saves) save();
}

// Messages still in flight count towards the time of the steps that sent them.
template <typename Wait>
void Trainer::on_the_clock(Wait wait) {
  const auto start = Clock::now();
  wait();
  const double time = seconds(start, Clock::now());
  for (Tally& sums : sums_) {
    sums.seconds += time;
    sums.exposed += time;
  }
}

void Trainer::check_replicas() {
  const auto lock = averaging_->hold();
  std::vector<Replica> replicas;
  for (const Bucket& bucket : learner_.buckets()) {
    const std::span<const float> weights = averaging_->model(bucket.id);
    for (const Parameter& parameter : bucket.parameters) {
      replicas.push_back(
          {parameter.name, std::as_bytes(weights.subspan(parameter.offset, parameter.count))});
    }
  }
  thinwire::check_replicas(group_, replicas);
}

void Trainer::watch_exchange() {
  if (settings_.trace.empty() || group_.rank() != 0) return;
  averaging_->observe([this](const Stage& stage) {
    trace_.stage(stage.name, stage.round, stage.bucket, stage.begin, stage.end);
  });
}

Report Trainer::report_of(int rank) {
  learner_.turn_to(rank);
  return averaging_->report();
}

Tally Trainer::tally(int rank) {
  const Report report = report_of(rank);
  Tally all = sums(rank);
  all.payload_bytes = static_cast<double>(report.payload_bytes);
  all.dense_bytes = static_cast<double>(report.dense_bytes);
  all.sent_bytes = static_cast<double>(report.traffic.sent);
  all.encode = report.encode_seconds;
  all.wait = report.wait_seconds;
  // What virtual workers decode alike takes only the first of them time.
  all.decode = std::max(report.decode_seconds, report_of(crew_.begin).decode_seconds);
  if (!crew_.serves(rank)) return all;
  Tally server;  // its traffic is a cost of the workers; its time is not
  server.payload_bytes = all.payload_bytes;
  server.sent_bytes = all.sent_bytes;
  return server;
}

Tally Trainer::mean_tally() {
  std::vector<double> all = Tally().values();
  for (int rank = crew_.begin; rank < crew_.end; ++rank) add(all, tally(rank).values());
  const auto lock = averaging_->hold();
  Tally mean = Tally::from(sum_over(group_, all), 1.0 / crew_.workers);
  if (!averaging_->in_step()) mean.skipped *= crew_.workers;  // each worker counts its own
  return mean;
}

apps::Row Trainer::columns(const Tally& tally) const {
  apps::Row row = row_of(settings_, tally);
  if (averaging_->timed()) return row;
  for (const char* key : {"encode_seconds", "wait_seconds", "decode_seconds"}) row.erase(key);
  return row;
}

void Trainer::add_score(apps::Row& row) {
  const auto showing = averaging_->show();
  const Score score = learner_.evaluate();
  row["test_loss"] = score.loss;
  const Domain domain = learner_.domain();
  if (domain == Domain::text) row["perplexity"] = std::exp(score.loss);
  if (domain == Domain::speech) row["word_error"] = 1 - score.accuracy;
  if (domain != Domain::speech) row["accuracy"] = score.accuracy;
}

void Trainer::write_row(bool evaluate) {
  // Delayed: uses rank 0's own numbers, because a mean would make it wait.
  const Tally now = averaging_->in_step() ? mean_tally() : tally(crew_.begin);
  apps::Row row = {
      {"step", step_},
      {"epoch", static_cast<double>(step_) / static_cast<double>(learner_.steps_per_epoch())},
      {"rate", settings_.rates.at(step_ - 1, steps_, learner_.steps_per_epoch())}};
  row.update(columns(now.minus(row_start_)));
  row["bytes_total"] = now.payload_bytes;
  if (settings_.virtual_workers == 0) row["seconds_total"] = now.seconds;
  if (estimates(settings_)) row["estimated_seconds_total"] = now.estimated;
  row_start_ = now;
  if (evaluate) add_score(row);
  last_row_ = row;
  reporter_.row(std::move(row));
}

std::uint32_t Trainer::checksum() {
  std::uint32_t sum = 0;
  for (const Bucket& bucket : learner_.buckets())
    sum = sum * 31 + crc32c(std::as_bytes(averaging_->model(bucket.id)));
  return sum;
}

void Trainer::finish() {
  check_replicas();
  char text[16];
  std::snprintf(text, sizeof text, "%08x", checksum());

  apps::Row final = {{"steps", step_}};
  final.update(columns(mean_tally()));
  final["loss"] = last_row_.at("loss");
  // Delayed messages do not align with rows.
  final["last_ratio"] = averaging_->in_step() ? last_row_.at("ratio") : final.at("ratio");
  for (const char* key : {"test_loss", "perplexity", "word_error", "accuracy"}) {
    if (last_row_.contains(key)) final[key] = last_row_.at(key);
  }
  final["replicas_identical"] = true;  // check_replicas() throws otherwise
  final["checksum"] = text;
  apps::Row about = apps::about_machine();
  about["engine"] = engine_;
  about["device"] = settings_.device;
  about["compressed_on"] = settings_.cuda && seat_of(settings_) == Seat::model ? "cuda" : "cpu";
  about["emulated"] = settings_.emulated && settings_.virtual_workers == 0;
  if (settings_.virtual_workers > 0) about["virtual"] = settings_.virtual_workers;
  for (const auto& [flag, value] : settings_.identity(crew_.world)) about["settings"][flag] = value;
  // Prints the result first, so that a full disk cannot lose it.
  reporter_.end(final);
  Attempts attempts;
  attempts.add([&] { reporter_.write(final, about); });
  if (!settings_.trace.empty() && group_.rank() == 0)
    attempts.add([&] { trace_.write(settings_.trace, 0); });
  if (!settings_.save.empty() && saved_ != step_) attempts.add([&] { save(); });
  attempts.check();
  const auto lock = averaging_->hold();
  group_.barrier().wait();  // no rank leaves while others still send to it
}

// Everything that later steps depend on.
void Trainer::visit_state(StateVisitor& visitor) {
  auto step = static_cast<double>(step_);
  visitor.number("training/step", step, Share::replicated);
  step_ = static_cast<std::uint64_t>(step);
  learner_.visit_buffers(visitor);
  averaging_->visit_state(visitor);
}

void Trainer::save() {
  for (int rank = crew_.begin; rank < crew_.end; ++rank) {
    learner_.turn_to(rank);
    State state;
    StateSaver saver(state);
    visit_state(saver);
    write_checkpoint(settings_.save, rank, std::move(state), settings_.identity(crew_.world));
  }
  const auto lock = averaging_->hold();
  publish_checkpoint(group_, settings_.save, crew_);
  saved_ = step_;
}

void Trainer::resume() {
  load(crew_.begin);
  const std::uint64_t step = step_;
  const std::uint32_t weights = checksum();
  for (int rank = crew_.begin + 1; rank < crew_.end; ++rank) {
    load(rank);
    if (step_ != step) refuse_steps(rank);
    if (checksum() == weights) continue;
    throw apps::BadInput("--resume: the files of '" + settings_.resume +
                         "' are of different trainings: rank " + std::to_string(rank) +
                         " has other weights than rank 0; use another checkpoint");
  }
  const double sum = sum_over(group_, {static_cast<double>(step_)})[0];
  if (sum != static_cast<double>(step_) * group_.size()) refuse_steps(group_.rank());
}

void Trainer::load(int rank) {
  learner_.turn_to(rank);
  const State state = load_checkpoint(settings_.resume, rank, settings_.identity(crew_.world));
  StateLoader loader(state);
  try {
    visit_state(loader);
  } catch (const Error& error) {
    throw apps::BadInput(std::string("--resume: ") + error.what());
  }
}

void Trainer::refuse_steps(int rank) const {
  throw apps::BadInput("--resume: the files of '" + settings_.resume +
                       "' are of different steps, rank " + std::to_string(rank) + "'s of step " +
                       std::to_string(step_) + "; use another checkpoint");
}

}  // namespace thinwire::train
