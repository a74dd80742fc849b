// ledger.cc: the arithmetic of delayed averaging, array by array.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/ledger.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"
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
  float* const w = weights_.data();
  for_elements(weights_.size(), [&](std::size_t i) {
    const float update = w[i] - start_[i];
    open_[i] += update;
    w[i] = start_[i] + share_ * update;
    start_[i] = w[i];
  });
}

void Ledger::close(std::span<float> message, bool take_part) {
  if (message.size() != weights_.size())
    fail("ledger: expected room for ", weights_.size(), " values, got ", message.size());
  Kept kept{fresh(), share_};
  float* const w = weights_.data();
  const float share = options_.correction == Correction::none ? 0 : share_;
  const bool pull = options_.correction == Correction::pull;
  if (!take_part) step();
  for_elements(message.size(), [&](std::size_t i) {
    float update = 0;
    if (take_part) {
      const float now = w[i] - start_[i];
      update = open_.empty() ? now : open_[i] + now;
      if (share != 1) w[i] = start_[i] + share * now;
      if (!open_.empty()) open_[i] = 0;
      start_[i] = w[i];
    }
    message[i] = update;
    kept.made[i] = pull ? start_[i] : share * update;
  });
  kept_.push_back(std::move(kept));
  // The share changes between rounds only: one share applies to the whole message.
  if (take_part && options_.measures_share()) share_ = next_share();
}

Ledger::Due Ledger::acknowledge(std::span<const float> mean, std::span<const float> own) {
  if (kept_.empty()) fail("ledger: an acknowledgement came, but no round is in flight");
  if (mean.size() != weights_.size() || (options_.book_b && own.size() != weights_.size()))
    fail("ledger: expected ", weights_.size(), " values, got ", mean.size());
  Kept kept = std::move(kept_.front());
  kept_.pop_front();
  Due result;
  if (options_.clip > 0) result.mean = squared_norm(mean.data(), mean.size());
  const bool pull = options_.correction == Correction::pull;
  const auto rate = static_cast<float>(options_.pull_rate());
  const bool book_b = options_.book_b;
  for_elements(mean.size(), [&](std::size_t i) {
    anchor_[i] += mean[i];
    if (pull) {
      due_[i] += rate * (anchor_[i] - kept.made[i]);
    } else {
      if (book_b) held_[i] += kept.made[i] - own[i];
      due_[i] += mean[i] - (book_b ? own[i] : kept.made[i]);
    }
  });
  if (options_.clip > 0) result.correction = squared_norm(due_.data(), due_.size());
  if (options_.measures_share()) listen(kept, mean);
  spare_.push_back(std::move(kept.made));
  return result;
}

void Ledger::listen(const Kept& kept, std::span<const float> mean) {
  struct Products {
    double with_mean = 0, with_self = 0;
  };
  std::vector<Products> pieces((mean.size() + piece - 1) / piece);
  parallel_for(pieces.size(), [&](std::size_t p) {
    Products sums;
    for (std::size_t i = p * piece; i < std::min(mean.size(), (p + 1) * piece); ++i) {
      const double own = kept.made[i] / kept.share;
      sums.with_mean += own * mean[i];
      sums.with_self += own * own;
    }
    pieces[p] = sums;
  });
  Products sums;
  for (const Products& part : pieces) {
    sums.with_mean += part.with_mean;
    sums.with_self += part.with_self;
  }
  if (!std::isfinite(sums.with_mean) || !std::isfinite(sums.with_self)) return;
  const double memory = 1 - std::min(0.5, static_cast<double>(options_.local_steps) / 50);
  with_mean_ = memory * with_mean_ + sums.with_mean;
  with_self_ = memory * with_self_ + sums.with_self;
}

// Own updates that are noise share 1 / workers with the mean; updates that all workers make share
// everything. The larger the common part, the larger the share that is applied at once: from a
// common part of a third on, it is all.
float Ledger::next_share() const {
  if (with_self_ == 0 || workers_ == 1) return 1;
  const double noise = 1 / static_cast<double>(workers_);
  const double common = (with_mean_ / with_self_ - noise) / (1 - noise);
  return static_cast<float>(std::clamp(0.5 + 1.5 * common, 0.5, 1.0));
}

void Ledger::settle(double share) {
  const auto part = static_cast<float>(share);
  float* const w = weights_.data();
  for_elements(due_.size(), [&](std::size_t i) {
    const float made = part * due_[i];
    w[i] += made;
    start_[i] += made;
    due_[i] -= made;
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
  number("with_mean", with_mean_);
  number("with_self", with_self_);
}

}  // namespace thinwire
