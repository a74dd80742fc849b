// ledger.cc: the arithmetic of delayed averaging, array by array.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/ledger.h"

#include <algorithm>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"
#include "thinwire/kernels/ledger.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Elements are processed in pieces that fit into a cache.
constexpr std::size_t piece = std::size_t{1} << 16;

template <typename Body>
void for_elements(std::size_t count, Body body) {
  parallel_for((count + piece - 1) / piece, [&](std::size_t i) {
    const std::size_t end = std::min(count, (i + 1) * piece);
    for (std::size_t at = i * piece; at < end; ++at) body(at);
  });
}

}  // namespace

Ledger::Ledger(const DelayOptions& options, Bucket bucket, std::span<float> weights,
               std::size_t workers)
    : options_(options),
      workers_(workers),
      share_(static_cast<float>(options.effective_share())),
      bucket_(std::move(bucket)),
      weights_(weights),
      anchor_(weights.begin(), weights.end()),
      start_(anchor_),
      due_(weights.size()) {
  if (options.correction == Correction::published)
    fail("ledger: the published correction works on gradients, not on weights");
  if (bucket_.elements() != weights.size())
    fail("ledger: expected ", bucket_.elements(), " weights, got ", weights.size());
  if (options.book_b) held_.resize(weights.size());
  if (share_ != 1 || options.measures_share()) open_.resize(weights.size());
}

std::vector<float> Ledger::fresh() {
  if (spare_.empty()) return std::vector<float>(weights_.size());
  std::vector<float> array = std::move(spare_.back());
  spare_.pop_back();
  return array;
}

void Ledger::step() {
  if (share_ == 1) return;  // close() finds the whole update in the weights
  const LedgerMove move{.takes = true, .has_open = true};
  for_elements(weights_.size(), [&](std::size_t i) {
    LedgerElement e{weights_[i], start_[i], 0, open_[i]};
    ledger_move(move, share_, 0, e);
    weights_[i] = e.weight;
    start_[i] = e.start;
    open_[i] = e.open;
  });
}

void Ledger::close(std::span<float> message, bool take_part) {
  if (message.size() != weights_.size())
    fail("ledger: expected room for ", weights_.size(), " values, got ", message.size());
  Kept kept{fresh(), share_};
  if (!take_part) step();
  const LedgerMove move{.takes = take_part,
                        .closes = true,
                        .has_open = !open_.empty(),
                        .gives_back = options_.correction == Correction::none,
                        .pulls = options_.correction == Correction::pull};
  for_elements(message.size(), [&](std::size_t i) {
    LedgerElement e{weights_[i], start_[i]};
    LedgerBooks books{start_[i], 0, open_.empty() ? 0 : open_[i], 0};
    books.message = ledger_move(move, share_, 0, e);
    if (ledger_writes_start(move, share_)) books.start = e.start;
    kept.made[i] = ledger_follow(move, share_, 0, books);
    weights_[i] = e.weight;
    start_[i] = e.start;
    message[i] = books.message;
    if (take_part && !open_.empty()) open_[i] = 0;
  });
  kept_.push_back(std::move(kept));
  // The share changes between rounds only: one share applies to the whole message.
  if (take_part && options_.measures_share()) share_ = ledger_share(sums_, workers_);
}

Ledger::Due Ledger::acknowledge(std::span<const float> mean, std::span<const float> own) {
  if (kept_.empty()) fail("ledger: an acknowledgement came, but no round is in flight");
  if (mean.size() != weights_.size() || (options_.book_b && own.size() != weights_.size()))
    fail("ledger: expected ", weights_.size(), " values, got ", mean.size());
  Kept kept = std::move(kept_.front());
  kept_.pop_front();
  Due result;
  if (options_.clip > 0) result.mean = squared_norm(mean.data(), mean.size());
  const LedgerAcknowledge rule{options_.correction == Correction::pull, options_.book_b,
                               static_cast<float>(options_.pull_rate())};
  const LedgerArrays arrays{mean.size(), anchor_.data(), start_.data(),
                            due_.data(), open_.data(),   held_.data()};
  ledger_acknowledge_all(rule, arrays, mean.data(), own.data(), kept.made.data(), nullptr);
  if (options_.clip > 0) result.correction = squared_norm(due_.data(), due_.size());
  if (options_.measures_share())
    ledger_listen(options_.share_memory(),
                  ledger_products_all(kept.made.data(), kept.share, mean.data(), mean.size()),
                  sums_);
  spare_.push_back(std::move(kept.made));
  return result;
}

void Ledger::settle(double share) {
  const auto part = static_cast<float>(share);
  for_elements(due_.size(), [&](std::size_t i) {
    LedgerElement e{weights_[i], start_[i], due_[i]};
    ledger_settle(part, e);
    weights_[i] = e.weight;
    start_[i] = e.start;
    due_[i] = e.due;
  });
}

void Ledger::come_home() {
  if (!kept_.empty()) fail("ledger: ", kept_.size(), " rounds are still in flight");
  for_elements(weights_.size(), [&](std::size_t i) {
    weights_[i] = start_[i] = anchor_[i];
    due_[i] = held_.empty() ? 0 : held_[i];
  });
}

std::vector<double> Ledger::lead() const {
  std::vector<double> sum(weights_.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = static_cast<double>(weights_[i]) - start_[i] - due_[i];
    if (!open_.empty()) sum[i] += share_ * open_[i];
    if (!held_.empty()) sum[i] += held_[i];
    for (const Kept& kept : kept_) sum[i] += kept.made[i];
  }
  return sum;
}

std::vector<double> Ledger::open() const {
  std::vector<double> sum(weights_.size());
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = static_cast<double>(weights_[i]) - start_[i] + (open_.empty() ? 0 : open_[i]);
  return sum;
}

void Ledger::visit_state(StateVisitor& visitor) {
  const auto visit = [&](const std::string& name, std::span<float> values, Share share) {
    visit_by_parameter(visitor, bucket_, name, values, share);
  };
  visit("weights", anchor_, Share::replicated);
  visit("own", weights_, Share::local);
  visit("start", start_, Share::local);
  if (!open_.empty()) visit("open", open_, Share::local);
  visit("due", due_, Share::local);
  if (!held_.empty()) visit("held", held_, Share::local);
  const auto number = [&](const std::string& name, double& value) {
    visitor.number("delay/" + std::to_string(bucket_.id) + "/" + name, value, Share::local);
  };
  const auto share = [&](const std::string& name, float& value) {
    double wide = value;
    number(name, wide);
    value = static_cast<float>(wide);
  };
  auto rounds = static_cast<double>(kept_.size());
  number("rounds", rounds);
  kept_.resize(static_cast<std::size_t>(rounds));
  for (Kept& kept : kept_) kept.made.resize(weights_.size());
  for (std::size_t r = 0; r < kept_.size(); ++r)
    visit("kept" + std::to_string(r), kept_[r].made, Share::local);
  if (!options_.measures_share()) return;
  share("share", share_);
  for (std::size_t r = 0; r < kept_.size(); ++r) share("share" + std::to_string(r), kept_[r].share);
  number("with_mean", sums_.with_mean);
  number("with_self", sums_.with_self);
}

}  // namespace thinwire
