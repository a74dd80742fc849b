// striped.cc: sends stripes to their owners, and averages back.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/striped.h"

#include <algorithm>
#include <limits>

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Each inner compressor has only one round.
Turn first_round(Turn turn) {
  turn.round = 0;
  return turn;
}

// The stripe under the owner's names and numbers, so that state, frames and random draws of
// averages differ from those of gradients.
Stripe average_of(Stripe stripe) {
  for (Parameter& parameter : stripe.bucket.parameters) parameter.name += "/owner";
  for (Piece& piece : stripe.pieces) piece.whole = true;  // no other owner has parts of it
  ++stripe.bucket.id;
  return stripe;
}

// A compressor that clips by the norm of its bucket would use the norm of the stripe. So the norm
// of the whole bucket is passed in instead.
bool take_bucket_norm(Config& config) {
  const auto given = config.options.find("clip_norm");
  if (given == config.options.end() || given->second != "bucket") return false;
  given->second = "global";
  return true;
}

}  // namespace

TensorView Striped::Lane::of(const TensorView& bucket) const {
  auto* const data = static_cast<std::byte*>(bucket.data) + stripe.first * size_of(bucket.dtype);
  return {data, stripe.count(), bucket.dtype, bucket.device};
}

Striped::Striped(Config config, const ExchangeKind& kind, const Bucket& bucket, const Site& site,
                 Make make)
    : bucket_(bucket),
      site_(site),
      workers_(kind.workers(site.world)),
      bucket_norm_(take_bucket_norm(config)) {
  const auto owners = static_cast<std::size_t>(kind.owners(site_.world));
  const Config second = second_of(kind, config);
  std::vector<Stripe> stripes = cut(bucket_, owners);
  for (std::size_t i = 0; i < owners; ++i) {
    Lane lane;
    lane.stripe = std::move(stripes[i]);
    lane.average = average_of(lane.stripe);
    // Tiny buckets have few stripes. Each bucket starts at another owner, so that all get some.
    lane.owner = kind.first_owner(site_.world) + static_cast<int>((i + bucket_.id) % owners);
    if (!lane.empty()) {
      const Site pushes{works() ? site_.rank : 0, workers_, false, works(), site_.device};
      const Site pulls{0, 1, false, owns(lane), site_.device};
      lane.push = make(config, lane.stripe.bucket, pushes);
      lane.pull = make(second, lane.average.bucket, pulls);
    }
    lanes_.push_back(std::move(lane));
  }
}

bool Striped::needs_norm() const {
  const auto asks = [](const Lane& lane) { return !lane.empty() && lane.push->needs_norm(); };
  return !bucket_norm_ && std::any_of(lanes_.begin(), lanes_.end(), asks);
}

Leg Striped::leg(std::uint64_t step, int round) const {
  Leg leg{round == 0 ? Reduction::scatter : Reduction::gather, DType::f32, 0};
  for (const Lane& lane : lanes_) {
    if (lane.empty()) continue;
    const Compressor& part = round == 0 ? *lane.push : *lane.pull;
    leg.bytes = std::max(leg.bytes, part.leg(step, 0).bytes);
  }
  return leg;
}

void Striped::visit_state(StateVisitor& visitor) {
  const std::string place = "bucket" + std::to_string(bucket_.id);
  StripeVisitor gradients(visitor, bucket_, place + "/stripe");
  StripeVisitor averages(visitor, bucket_, place + "/owner");
  const auto visit_all = [&] {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const Lane& lane = lanes_[i];
      if (works() && !lane.empty()) {
        gradients.enter(lane.stripe, i);
        lane.push->visit_state(gradients);
      }
      if (owns(lane)) {
        averages.enter(lane.average, i);
        lane.pull->visit_state(averages);
      }
    }
  };
  visit_all();
  averages.join();  // owners have whole stripes
  if (gradients.join()) visit_all();
}

StripedCompressor::StripedCompressor(const Config& config, const ExchangeKind& kind,
                                     const Bucket& bucket, const Site& site)
    : Striped(config, kind, bucket, site, make_compressor),
      who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
      sizes_(static_cast<std::size_t>(site.world)) {}

std::size_t StripedCompressor::encode(const Turn& turn, TensorView gradient, Bytes out) {
  require_f32_cpu(gradient, bucket_.elements(), who_);
  return turn.round == 0 ? encode_gradient(turn, gradient, out) : encode_average(turn, out);
}

std::size_t StripedCompressor::encode_gradient(const Turn& turn, TensorView gradient, Bytes out) {
  averaged_ = false;
  if (!works()) return 0;
  Turn inner = turn;
  if (bucket_norm_) inner.squared_norm = squared_norm(gradient.f32().data(), gradient.count);
  const std::size_t slot = out.size() / sizes_.size();
  std::size_t total = 0;
  for (const Lane& lane : lanes_) {
    if (lane.empty()) continue;
    const auto owner = static_cast<std::size_t>(lane.owner);
    const Bytes room = out.subspan(owner * slot, lane.push->leg(turn.step, 0).bytes);
    sizes_[owner] = lane.push->encode(inner, lane.of(gradient), room);
    total += sizes_[owner];
  }
  return total;
}

// A server has no gradient.
std::optional<bool> StripedCompressor::sound() const {
  bool all = true;
  for (const Lane& lane : lanes_) {
    if (!works() || lane.empty()) continue;
    const std::optional<bool> one = lane.push->sound();
    if (!one) return one;
    all = all && *one;
  }
  return all;
}

std::size_t StripedCompressor::encode_average(const Turn& turn, Bytes out) {
  for (const Lane& lane : lanes_) {
    if (!owns(lane)) continue;
    // If the step is skipped, the workers take back their parts of this average. undo() of the
    // owner's compressor would keep them a second time, so its memory is restored instead.
    before_.take([&](StateVisitor& visitor) { lane.pull->visit_state(visitor); });
    averaged_ = true;
    const Bytes room = out.first(lane.pull->leg(turn.step, 0).bytes);
    return lane.pull->encode(first_round(turn), std::span(mean_), room);
  }
  return 0;
}

Status StripedCompressor::decode(const Turn& turn, const Inbox& inbox, TensorView average) {
  require_f32_cpu(average, bucket_.elements(), who_);
  return turn.round == 0 ? decode_gradients(turn, inbox) : decode_averages(turn, inbox, average);
}

Status StripedCompressor::decode_gradients(const Turn& turn, const Inbox& inbox) {
  for (const Lane& lane : lanes_) {
    if (!owns(lane)) continue;
    mean_.resize(lane.stripe.count());
    // Only workers send gradients; they are the first ranks.
    const Status status = lane.push->decode(turn, inbox, std::span(mean_));
    if (status.code == Code::skipped) {
      // Only this rank knows so far. An average of NaNs changes no memory, and its frame tells all
      // ranks to skip the step.
      std::fill(mean_.begin(), mean_.end(), std::numeric_limits<float>::quiet_NaN());
    } else if (!status.ok()) {
      return status;
    } else if (!all_within_limit(mean_.data(), mean_.size())) {
      // The gradients are sound but accumulated over many steps. Refusing them would refuse every
      // later step too.
      for (float& value : mean_) value = std::clamp(value, -gradient_limit, gradient_limit);
    }
  }
  return {};
}

Status StripedCompressor::decode_averages(const Turn& turn, const Inbox& inbox,
                                          TensorView average) {
  Status result;
  for (const Lane& lane : lanes_) {
    if (lane.empty()) continue;
    const ConstBytes frame = inbox.slot(lane.owner);
    const Inbox one{frame, frame.size(), {}};
    const Status status = lane.pull->decode(first_round(turn), one, lane.of(average));
    if (!status.ok() && status.code != Code::skipped) {
      inbox.culprit = lane.owner;
      return status;
    }
    if (status.code == Code::skipped) result = status;
  }
  return result;
}

// Owners average in round 0. All ranks decode the averages of round 1 alike.
bool StripedCompressor::learns(int round) const {
  const auto changes = [&](const Lane& lane) {
    return round == 0 ? owns(lane) : !lane.empty() && lane.pull->learns(0);
  };
  return std::ranges::any_of(lanes_, changes);
}

void StripedCompressor::undo(const Turn& turn) {
  for (const Lane& lane : lanes_) {
    if (works() && !lane.empty()) lane.push->undo(first_round(turn));
  }
  restore_owned();
}

void StripedCompressor::forget(const Turn& turn, TensorView gradient) {
  for (const Lane& lane : lanes_) {
    if (works() && !lane.empty()) lane.push->forget(first_round(turn), lane.of(gradient));
  }
  restore_owned();
}

// Restores the owner's memory to the bits before the step. It belongs to averages, to which every
// rank contributed.
void StripedCompressor::restore_owned() {
  for (const Lane& lane : lanes_) {
    if (owns(lane) && averaged_)
      before_.put_back([&](StateVisitor& visitor) { lane.pull->visit_state(visitor); });
  }
  averaged_ = false;
}

}  // namespace thinwire
