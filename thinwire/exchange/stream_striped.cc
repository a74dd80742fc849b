// stream_striped.cc: stripes to their owners and averages back, in a stream.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_striped.h"

#include <algorithm>

#include "thinwire/core/error.h"
#include "thinwire/exchange/as_device.h"
#include "thinwire/exchange/stream_norm.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/stripe.h"

namespace thinwire {
namespace {

bool on_cpu(Device device) { return device.kind == Device::Kind::cpu; }

// The kernels of stripe.h; on the CPU the same rules, at once.
void open_stripes(Verdict* stripes, std::size_t count, const Verdict* step, Device device,
                  Stream stream) {
  if (!on_cpu(device)) return open_stripes_cuda(stripes, count, step, stream);
  std::fill_n(stripes, count, stripe_verdict(step));
}

void settle_mean(const TensorView& mean, const Verdict* stripe, Stream stream) {
  auto* const values = static_cast<float*>(mean.data);
  if (!on_cpu(mean.device)) return owned_mean_cuda(values, mean.count, stripe, stream);
  for (float& value : mean.f32()) value = owned_mean(value, stripe->void_step());
}

// What a server gets in a void step.
void fill_void(const Turn& turn, const TensorView& average, float fill) {
  if (!on_cpu(average.device))
    fill_void_cuda(average.dtype, average.data, average.count, fill, turn.verdict, turn.stream);
  else if (turn.verdict->void_step())
    std::ranges::fill(average.f32(), fill);
}

}  // namespace

StreamStriped::StreamStriped(const Config& config, const ExchangeKind& kind, const Bucket& bucket,
                             const Site& site)
    : Striped(config, kind, bucket, site, make_on_device) {
  const DeviceScope scope(site.device);
  const Place place = place_on(site.device);
  const OwnStream stream(site.device);
  std::vector<std::int32_t> owners;
  for (const Lane& lane : lanes_) {
    owners.push_back(lane.owner);
    if (!owns(lane)) continue;
    owned_ = &lane;
    mean_ = Buffer(place, lane.stripe.count() * sizeof(float), site.device);
    Turn first;
    first.stream = stream.get();
    lane.pull->keep(first);  // makes room, or throws
  }
  owners.insert(owners.end(), 2, -1);
  verdicts_ = Buffer(place, owners.size() * sizeof(Verdict), site.device);
  owners_ = Buffer(place, owners.size() * sizeof(std::int32_t), site.device);
  stream.copy(owners_.data(), owners.data(), owners_.size());
  if (bucket_norm_)
    norm_ = Buffer(place, (norm_scratch(bucket.elements()) + 1) * sizeof(double), site.device);
  stream.wait();
}

TensorView StreamStriped::mean() const {
  return {mean_.data(), owned_->stripe.count(), DType::f32, site_.device};
}

std::size_t StreamStriped::encode(const Turn& turn, TensorView gradient, Bytes out) {
  require_gradient(gradient, bucket_, site_.device,
                   text_of("rank ", site_.rank, ", bucket ", bucket_.id));
  if (turn.round == 0)
    encode_gradient(turn, gradient, out);
  else
    encode_average(turn, out);
  return leg(turn.step, turn.round).bytes;
}

// Lengths that nobody writes are 0: of empty stripes, and of a server.
void StreamStriped::encode_gradient(const Turn& turn, TensorView gradient, Bytes out) {
  averaged_ = false;
  if (!works()) return;
  Turn inner = turn;
  if (bucket_norm_) {
    auto* const norm = norm_.as<double>();
    enqueue_norm(gradient, norm + 1, norm, turn.stream);
    inner.norm = norm;
  }
  const std::size_t slot = out.size() / static_cast<std::size_t>(site_.world);
  for (const Lane& lane : lanes_) {
    if (lane.empty()) continue;
    const auto owner = static_cast<std::size_t>(lane.owner);
    inner.written = turn.written + owner;
    lane.push->encode(inner, lane.of(gradient),
                      out.subspan(owner * slot, lane.push->leg(turn.step, 0).bytes));
  }
}

// An average of NaNs is none of this rank's gradients, so the step's verdict must not say so.
void StreamStriped::encode_average(const Turn& turn, Bytes out) {
  if (!owned_) return;
  Turn inner = turn;
  inner.round = 0;
  owned_->pull->keep(inner);
  averaged_ = true;
  inner.verdict = verdict(lanes_.size() + 1);
  owned_->pull->encode(inner, mean(), out.first(owned_->pull->leg(turn.step, 0).bytes));
}

Status StreamStriped::decode(const Turn& turn, const Inbox& inbox, TensorView average) {
  return turn.round == 0 ? decode_gradients(turn, inbox) : decode_averages(turn, inbox, average);
}

Status StreamStriped::decode_gradients(const Turn& turn, const Inbox& inbox) {
  if (!owned_) return {};
  Turn inner = turn;
  inner.verdict = verdict(lanes_.size());
  open_stripes(inner.verdict, 2, nullptr, site_.device, turn.stream);
  // Only workers send gradients; they are the first ranks.
  const Status status = owned_->push->decode(inner, inbox, mean());
  settle_mean(mean(), inner.verdict, turn.stream);
  join(turn, lanes_.size(), 1);
  return status;
}

Status StreamStriped::decode_averages(const Turn& turn, const Inbox& inbox, TensorView average) {
  open_stripes(verdict(0), lanes_.size(), turn.verdict, site_.device, turn.stream);
  Turn inner = turn;
  inner.round = 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.empty()) continue;
    inner.verdict = verdict(i);
    Inbox one;
    one.slot_bytes = lane.pull->leg(turn.step, 0).bytes;
    one.data = inbox.slot(lane.owner).first(one.slot_bytes);
    if (const Status status = lane.pull->decode(inner, one, lane.of(average)); !status.ok())
      return status;
  }
  join(turn, 0, lanes_.size());
  return {};
}

// The verdicts of stripes become one of the bucket.
void StreamStriped::join(const Turn& turn, std::size_t first, std::size_t count) const {
  const auto* const owners = owners_.as<const std::int32_t>() + first;
  if (!on_cpu(site_.device))
    return join_stripes_cuda(turn.verdict, verdict(first), owners, count, bucket_.id, turn.stream);
  for (std::size_t i = 0; i < count; ++i)
    *turn.verdict = joined_verdict(*turn.verdict, *verdict(first + i), owners[i], bucket_.id);
}

void StreamStriped::undo(const Turn&) { fail("on a device a step ends with conclude()"); }

void StreamStriped::conclude(const Turn& turn, TensorView gradient, float fill) {
  for (const Lane& lane : lanes_) {
    if (works() && !lane.empty()) lane.push->conclude(turn, lane.of(gradient), fill);
  }
  if (!works()) fill_void(turn, gradient, fill);
  if (averaged_) owned_->pull->restore(turn);
  averaged_ = false;
}

}  // namespace thinwire
