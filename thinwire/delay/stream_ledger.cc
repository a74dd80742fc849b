// stream_ledger.cc: which kernels run when a step ends, and in which stream.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/stream_ledger.h"

#include <algorithm>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {

StreamLedger::StreamLedger(const DelayOptions& options, Bucket bucket, const LedgerPieces& weights,
                           std::size_t workers, std::size_t depth, bool moments,
                           const OwnStream& side)
    : options_(options),
      bucket_(std::move(bucket)),
      workers_(workers),
      moments_(moments),
      side_(side) {
  const std::size_t bytes = count() * sizeof(float);
  anchor_ = room(bytes), start_ = room(bytes), due_ = room(bytes);
  if (options.book_b) held_ = room(bytes);
  if (options.effective_share() != 1 || options.measures_share()) open_ = room(bytes);
  numbers_ = room(sizeof(LedgerNumbers));
  shares_ = room(depth * sizeof(float));
  one_ = room(sizeof(float));
  if (options.measures_share() && !on_cpu()) sums_ = room(ledger_scratch(count()) * sizeof(double));
  const float one = 1;
  const LedgerNumbers numbers{{}, static_cast<float>(options.effective_share())};
  side_.copy(one_.data(), &one, sizeof one);
  side_.copy(numbers_.data(), &numbers, sizeof numbers);
  part_ = one_.as<float>();
  for (std::size_t i = 0; i < depth; ++i) spare_.push_back({room(bytes), depth - 1 - i});
  place(weights, side_.get());
  copy_out(anchor_.as<float>(), side_.get());
  side_.copy(start_.data(), anchor_.data(), bytes);
  side_.wait();
}

Buffer StreamLedger::room(std::size_t bytes) const {
  return {place_on(side_.device()), bytes, side_.device()};
}

void StreamLedger::place(const LedgerPieces& weights, Stream now) {
  if (weights == weights_) return;
  std::size_t covered = 0;
  for (const LedgerPiece& piece : weights) covered += piece.count;
  if (covered != count())
    fail("delay: bucket ", bucket_.id, ": expected ", count(), " weights, got ", covered);
  weights_ = weights;
  if (on_cpu()) return;
  const std::size_t bytes = weights.size() * sizeof(LedgerPiece);
  synchronize(now);  // work with the old pieces
  if (pieces_.size() < bytes) pieces_ = room(bytes);
  copy_bytes(pieces_.data(), weights_.data(), bytes, now);
  synchronize(now);
}

LedgerArrays StreamLedger::arrays() const {
  return {count(),          anchor_.as<float>(), start_.as<float>(),
          due_.as<float>(), open_.as<float>(),   held_.as<float>()};
}

LedgerMove StreamLedger::plan(const End& end) const {
  LedgerMove move;
  const double pace = moments_ ? 1 : options_.effective_pace();
  move.settles_first = correction_ && pace == 1;
  move.floors = moments_;
  move.has_open = open_.size() > 0;
  // Where the whole update stays in the weights, the end of the round finds it there.
  move.takes = end.takes && (end.closes || move.has_open);
  move.closes = end.closes;
  move.settles_last = end.settles && pace != 1;
  move.pace = static_cast<float>(pace);
  move.open_clear = open_clear_;
  move.gives_back = options_.correction == Correction::none;
  move.pulls = options_.correction == Correction::pull;
  return move;
}

bool StreamLedger::has_work(const LedgerMove& move) {
  return move.settles_first || move.takes || move.settles_last;
}

void StreamLedger::move(const End& end, float* message, Stream now) {
  const LedgerMove move = plan(end);
  if (!has_work(move)) return;
  if (on_cpu()) return ledger_move_all(move, arrays(), weights_, part_, numbers(), message);
  ledger_move_cuda(move, arrays(), pieces_.as<LedgerPiece>(), weights_.size(), part_, numbers(),
                   message, now);
}

void StreamLedger::follow(const End& end, float* message) {
  const LedgerMove move = plan(end);
  float* made = nullptr;
  if (move.closes) {
    if (spare_.empty()) fail("delay: ", kept_.size(), " rounds are in flight already");
    kept_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    made = kept_.back().made.as<float>();
  }
  if (move.settles_first || move.closes || move.settles_last) {
    if (on_cpu())
      ledger_follow_all(move, arrays(), part_, numbers(), message, made);
    else
      ledger_follow_cuda(move, arrays(), part_, numbers(), message, made, side_.get());
  }
  correction_ = correction_ && !move.settles_first;
  if (move.takes) open_clear_ = move.closes;
  if (!move.closes) return;
  // The share changes between rounds only: one share applies to the whole message.
  const bool measures = move.takes && options_.measures_share();
  float* const share = share_of(kept_.back());
  if (!on_cpu()) return ledger_share_cuda(numbers(), share, workers_, measures, side_.get());
  *share = numbers()->share;
  if (measures) numbers()->share = ledger_share(numbers()->sums, workers_);
}

void StreamLedger::acknowledge(const float* mean, const float* own, const Verdict* verdict) {
  if (kept_.empty()) fail("delay: an acknowledgement came, but no round is in flight");
  const Kept& kept = kept_.front();
  const LedgerAcknowledge rule{options_.correction == Correction::pull, options_.book_b,
                               static_cast<float>(options_.pull_rate())};
  const float *const made = kept.made.as<float>(), *const share = share_of(kept);
  const bool measures = options_.measures_share();
  if (on_cpu()) {
    ledger_acknowledge_all(rule, arrays(), mean, own, made, verdict);
    if (measures && !verdict->void_step())
      ledger_listen(options_.share_memory(), ledger_products_all(made, *share, mean, count()),
                    numbers()->sums);
  } else {
    ledger_acknowledge_cuda(rule, arrays(), mean, own, made, share,
                            measures ? sums_.as<double>() : nullptr, verdict, side_.get());
    if (measures)
      ledger_listen_cuda(options_.share_memory(), sums_.as<double>(), numbers(), verdict,
                         side_.get());
  }
  spare_.push_back(std::move(kept_.front()));
  kept_.pop_front();
  correction_ = true;
}

void StreamLedger::come_home(Stream now) {
  if (!kept_.empty()) fail("delay: ", kept_.size(), " rounds are still in flight");
  copy_in(anchor_.as<float>(), now);
}

void StreamLedger::forget_due() {
  const std::size_t bytes = anchor_.size();
  side_.copy(start_.data(), anchor_.data(), bytes);
  if (held_.size() > 0)
    side_.copy(due_.data(), held_.data(), bytes);
  else
    side_.zero(due_.data(), bytes);
  correction_ = false;
}

void StreamLedger::copy_out(float* array, Stream now) const {
  if (on_cpu()) return ledger_copy_all(LedgerCopy::out, weights_, array);
  ledger_copy_cuda(LedgerCopy::out, pieces_.as<LedgerPiece>(), weights_.size(), array, now);
}

void StreamLedger::copy_in(float* array, Stream now) const {
  if (on_cpu()) return ledger_copy_all(LedgerCopy::in, weights_, array);
  ledger_copy_cuda(LedgerCopy::in, pieces_.as<LedgerPiece>(), weights_.size(), array, now);
}

void StreamLedger::digest(std::uint64_t* to) const {
  if (on_cpu())
    *to = ledger_digest_all(anchor(), count());
  else
    ledger_digest_cuda(anchor(), count(), to, side_.get());
}

std::string StreamLedger::bad_parameter() const {
  LedgerNumbers found;
  side_.copy(&found, numbers_.data(), sizeof found);
  side_.wait();
  for (const Parameter& parameter : bucket_.parameters)
    if (found.bad >= parameter.offset && found.bad - parameter.offset < parameter.count)
      return parameter.name;
  return {};
}

void StreamLedger::visit_state(StateVisitor& visitor) {
  std::vector<float> host(count());
  const std::size_t bytes = host.size() * sizeof(float);
  const auto visit = [&](const std::string& name, const Buffer& array, Share share) {
    side_.copy(host.data(), array.data(), bytes);
    side_.wait();
    visit_by_parameter(visitor, bucket_, name, host, share);
    side_.copy(array.data(), host.data(), bytes);
    side_.wait();
  };
  visit("weights", anchor_, Share::replicated);
  const Buffer own = room(bytes);
  copy_out(own.as<float>(), side_.get());
  visit("own", own, Share::local);
  copy_in(own.as<float>(), side_.get());
  visit("start", start_, Share::local);
  if (open_.size() > 0) {
    if (open_clear_) side_.zero(open_.data(), bytes);
    visit("open", open_, Share::local);
    open_clear_ = false;
  }
  visit("due", due_, Share::local);
  if (held_.size() > 0) visit("held", held_, Share::local);
  visit_numbers(visitor);
  for (std::size_t r = 0; r < kept_.size(); ++r)
    visit("kept" + std::to_string(r), kept_[r].made, Share::local);
  side_.wait();
}

void StreamLedger::visit_numbers(StateVisitor& visitor) {
  const auto number = [&](const std::string& name, double value) {
    visitor.number("delay/" + std::to_string(bucket_.id) + "/" + name, value, Share::local);
    return value;
  };
  const auto rounds = static_cast<std::size_t>(number("rounds", static_cast<double>(kept_.size())));
  while (kept_.size() > rounds) spare_.push_back(std::move(kept_.back())), kept_.pop_back();
  if (rounds > kept_.size() + spare_.size())
    fail("state 'delay/", bucket_.id, "/rounds': expected at most ", kept_.size() + spare_.size(),
         ", the checkpoint has ", rounds);
  while (kept_.size() < rounds) kept_.push_back(std::move(spare_.back())), spare_.pop_back();
  if (!options_.measures_share()) return;
  LedgerNumbers found;
  std::vector<float> shares(shares_.size() / sizeof(float));
  side_.copy(&found, numbers_.data(), sizeof found);
  side_.copy(shares.data(), shares_.data(), shares_.size());
  side_.wait();
  found.share = static_cast<float>(number("share", found.share));
  for (std::size_t r = 0; r < kept_.size(); ++r) {
    float& share = shares[kept_[r].place];
    share = static_cast<float>(number("share" + std::to_string(r), share));
  }
  found.sums.with_mean = number("with_mean", found.sums.with_mean);
  found.sums.with_self = number("with_self", found.sums.with_self);
  side_.copy(numbers_.data(), &found, sizeof found);
  side_.copy(shares_.data(), shares.data(), shares_.size());
  side_.wait();
}

}  // namespace thinwire
