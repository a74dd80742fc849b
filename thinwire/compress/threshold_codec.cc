// threshold_codec.cc: one pass writes two bits per element, then the smaller form is chosen.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/threshold_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "thinwire/core/parallel.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/sign.h"
#include "thinwire/memory/quota.h"

namespace thinwire {
namespace {

constexpr std::byte dense_form{0}, sparse_form{1};
constexpr float smallest = std::numeric_limits<float>::min();
constexpr float largest = std::numeric_limits<float>::max() / 4;
// A unit of parallel work; a multiple of 8, so that units do not share bytes.
constexpr std::size_t run_elements = std::size_t{1} << 17;
// Elements whose target stays in the L1 cache between the plus and the minus bits.
constexpr std::size_t block = 4096;

std::size_t plane_bytes(std::size_t count) { return (count + 7) / 8; }

const std::uint8_t* as_bits(ConstBytes bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

// Up to 64 bits of a plane, from byte `at` on.
std::uint64_t word_at(ConstBytes plane, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, plane.data() + at, std::min(sizeof word, plane.size() - at));
  return word;
}

// The header of the sparse form, a frame inside the frame. The outer one has bucket and step.
FrameHeader inner_header(std::size_t elements, std::uint8_t chunk_log2) {
  FrameHeader header;
  header.values = ValueCoder::sign;
  header.chunk_log2 = chunk_log2;
  header.elements = static_cast<std::uint32_t>(elements);
  return header;
}

}  // namespace

ThresholdCodec::ThresholdCodec(const ThresholdSettings& settings, const Bucket& bucket)
    : settings_(settings),
      name_("bucket" + std::to_string(bucket.id)),
      elements_(bucket.elements()) {
  const auto add = [&](std::size_t first, std::size_t count) {
    if (count == 0) return;
    segments_.push_back({first, count, planes_, settings.tau, settings.tau});
    planes_ += 2 * plane_bytes(count);
  };
  if (settings.per_layer) {
    for (const Parameter& parameter : bucket.parameters) add(parameter.offset, parameter.count);
  } else {
    add(0, elements_);
  }
}

std::size_t ThresholdCodec::payload_bytes() const { return head_bytes() + planes_; }

Coded ThresholdCodec::encode(std::span<const float> gradient, std::span<float> residual,
                             std::uint64_t, Bytes out) {
  const Bytes planes = out.subspan(head_bytes(), planes_);
  float* const r = residual.empty() ? nullptr : residual.data();
  std::size_t sent = 0;
  bool sound = true;
  std::byte* tau_at = out.data() + 1;
  for (Segment& segment : segments_) {
    segment.before = segment.tau;
    const float tau = tau_for(segment, gradient.data(), r);
    std::memcpy(tau_at, &tau, sizeof tau);
    tau_at += sizeof tau;
    const ThresholdTally tally = sweep(segment, tau, gradient.data(), r, planes);
    steer(segment, tau, tally, r != nullptr);
    sent += tally.sent;
    sound = sound && tally.finite;
  }
  out[0] = dense_form;
  if (2 * sent > elements_) return {payload_bytes(), sound};
  const std::size_t bytes = encode_sparse_form(planes);
  if (bytes >= planes.size()) return {payload_bytes(), sound};
  out[0] = sparse_form;
  std::copy_n(frame_.begin(), bytes, planes.begin());
  return {head_bytes() + bytes, sound};
}

// The threshold of this step. Where it is unknown, it is estimated from evenly spaced elements, so
// that the wanted share of x is sent.
float ThresholdCodec::tau_for(const Segment& segment, const float* g, const float* r) const {
  if (segment.tau > 0) return static_cast<float>(segment.tau);
  const std::size_t samples = std::min<std::size_t>(segment.count, 65536);
  std::vector<float> magnitudes;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::size_t at = segment.first + segment.count * i / samples;
    const float x = std::fabs(r == nullptr ? g[at] : g[at] + r[at]);
    magnitudes.push_back(within_limit(g[at]) ? x : 0);
  }
  const std::size_t rank = Quota::of(samples, settings_.density).wanted - 1;
  const auto nth = magnitudes.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(magnitudes.begin(), nth, magnitudes.end(), std::greater<>());
  return std::clamp(*nth, smallest, largest);
}

ThresholdTally ThresholdCodec::sweep(const Segment& segment, float tau, const float* g, float* r,
                                     Bytes planes) const {
  auto* plus = reinterpret_cast<std::uint8_t*>(planes.data() + segment.bits);
  std::uint8_t* minus = plus + plane_bytes(segment.count);
  std::vector<ThresholdTally> tallies((segment.count + run_elements - 1) / run_elements);
  parallel_for(tallies.size(), [&](std::size_t run) {
    const std::size_t at = run * run_elements, first = segment.first + at;
    tallies[run] =
        threshold_pass(tau, g + first, r == nullptr ? r : r + first,
                       std::min(run_elements, segment.count - at), plus + at / 8, minus + at / 8);
  });
  ThresholdTally all;
  for (const ThresholdTally& part : tallies) {
    all = {all.sent + part.sent, std::max(all.largest, part.largest), all.finite && part.finite};
  }
  return all;
}

// Steers tau gently towards the quota, because sending leaves an edge below tau. But an element
// whose gradient exceeds tau in every step gains more than it can send, which the count never
// shows. So tau also rises while a residual exceeds four quanta.
void ThresholdCodec::steer(Segment& segment, float tau, const ThresholdTally& tally,
                           bool keeps) const {
  if (settings_.tau > 0 || !tally.finite) return;
  if (segment.tau == 0 && tau == smallest) return;  // nothing was there to go by
  const auto wanted = static_cast<double>(Quota::of(segment.count, settings_.density).wanted);
  double excess = static_cast<double>(tally.sent) / wanted - 1;
  const double quanta = static_cast<double>(tally.largest) / static_cast<double>(tau);
  if (keeps && quanta > 4) excess = std::max(excess, quanta / 4);
  const double factor = 1 + 0.05 * std::min(excess, 4.0);
  segment.tau = std::clamp<double>(tau * factor, smallest, largest);
}

// Writes the sparse form to frame_, and returns its size.
std::size_t ThresholdCodec::encode_sparse_form(ConstBytes planes) {
  index_.clear();
  sign_.clear();
  for (const Segment& segment : segments_) {
    const ConstBytes plus = planes.subspan(segment.bits, plane_bytes(segment.count));
    const ConstBytes minus = planes.subspan(segment.bits + plus.size(), plus.size());
    for (std::size_t at = 0; at < plus.size(); at += 8) {
      const std::uint64_t negative = word_at(minus, at);
      for (std::uint64_t word = word_at(plus, at) | negative; word != 0; word &= word - 1) {
        const auto bit = static_cast<unsigned>(std::countr_zero(word));
        index_.push_back(static_cast<std::uint32_t>(segment.first + at * 8 + bit));
        sign_.push_back((negative >> bit & 1) != 0 ? -1.0f : 1.0f);
      }
    }
  }
  const auto elements = static_cast<std::uint32_t>(elements_);
  const FrameHeader header = inner_header(elements_, chunk_log2_for(elements, index_.size()));
  frame_.resize(sparse_frame_bound(header, index_.size()));
  return encode_sparse(header, index_, sign_, IndexChoice::golomb, frame_);
}

Status ThresholdCodec::add(ConstBytes payload, float share, std::span<float> target) const {
  if (payload.size() < head_bytes()) return {Code::truncated, "quanta: payload ends in its head"};
  std::vector<float> taus(segments_.size());
  if (!taus.empty()) std::memcpy(taus.data(), payload.data() + 1, taus.size() * sizeof(float));
  for (float& tau : taus) {
    if (!(tau >= smallest && tau <= largest))
      return {Code::bad_value, "quanta: a threshold that no encoder writes"};
    tau *= share;
  }
  const ConstBytes body = payload.subspan(head_bytes());
  if (payload[0] == dense_form) return add_dense(body, taus, target);
  if (payload[0] == sparse_form) return add_sparse(body, taus, target);
  return {Code::bad_value, "quanta: unknown form"};
}

Status ThresholdCodec::add_dense(ConstBytes planes, std::span<const float> taus,
                                 std::span<float> target) const {
  if (planes.size() != planes_) return {Code::mismatch, "quanta: not two bits per element"};
  for (std::size_t k = 0; k < segments_.size(); ++k) {
    const Segment& segment = segments_[k];
    const ConstBytes plus = planes.subspan(segment.bits, plane_bytes(segment.count));
    const ConstBytes minus = planes.subspan(segment.bits + plus.size(), plus.size());
    const auto padding = std::to_integer<unsigned>(plus.back() | minus.back());
    if (segment.count % 8 != 0 && padding >> segment.count % 8 != 0)
      return {Code::bad_value, "quanta: set bits in the padding"};
    for (std::size_t at = 0; at < plus.size(); at += 8) {
      if ((word_at(plus, at) & word_at(minus, at)) != 0)
        return {Code::bad_value, "quanta: an element of both signs"};
    }
    for (std::size_t at = 0; at < segment.count; at += block) {
      const std::size_t count = std::min(block, segment.count - at);
      float* const to = target.data() + segment.first + at;
      sign_add(as_bits(plus) + at / 8, count, 0, taus[k], to);
      sign_add(as_bits(minus) + at / 8, count, 0, -taus[k], to);
    }
  }
  return {};
}

Status ThresholdCodec::add_sparse(ConstBytes frame, std::span<const float> taus,
                                  std::span<float> target) const {
  FrameHeader header;
  Sparse sparse;
  std::size_t used = 0;
  if (const Status status = decode_sparse(frame, elements_ / 2, header, sparse, used); !status.ok())
    return status.code == Code::skipped ? Status{Code::bad_value, "quanta: skipped inside"}
                                        : status;
  if (used != frame.size() || header != inner_header(elements_, header.chunk_log2))
    return {Code::mismatch, "quanta: a sparse form of another kind, size or length"};
  std::size_t k = 0;
  for (std::size_t i = 0; i < sparse.indices.size(); ++i) {
    const std::uint32_t at = sparse.indices[i];
    while (at >= segments_[k].first + segments_[k].count) ++k;
    if (std::fabs(sparse.values[i]) != 1) return {Code::bad_value, "quanta: not a sign"};
    target[at] += sparse.values[i] * taus[k];
  }
  return {};
}

void ThresholdCodec::forget() {
  for (Segment& segment : segments_) segment.tau = segment.before;
}

void ThresholdCodec::visit_state(StateVisitor& visitor) {
  if (settings_.tau > 0) return;
  for (std::size_t k = 0; k < segments_.size(); ++k)
    visitor.number(name_ + "/tau" + std::to_string(k), segments_[k].tau, Share::local);
}

}  // namespace thinwire
