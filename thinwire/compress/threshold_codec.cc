// threshold_codec.cc: one pass writes two bits per element of a block, then its shorter form.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/threshold_codec.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>

#include "thinwire/compress/threshold_rule.h"
#include "thinwire/core/parallel.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/sign.h"
#include "thinwire/memory/quota.h"
#include "thinwire/wire/quanta.h"

namespace thinwire {
namespace {

using namespace threshold_rule;

constexpr std::size_t blocks_at_once = 8;  // a unit of parallel work
// Elements whose target stays in the L1 cache between the plus and the minus bits.
constexpr std::size_t near = 4096;

std::uint16_t length_at(const ThresholdCut& cut, ConstBytes payload, std::size_t block) {
  std::uint16_t length = 0;
  std::memcpy(&length, payload.data() + head_bytes(cut.segments.size(), block), sizeof length);
  return length;
}

float tau_at(ConstBytes payload, std::size_t segment) {
  float tau = 0;
  std::memcpy(&tau, payload.data() + head_bytes(segment, 0), sizeof tau);
  return tau;
}

Status add_dense(ConstBytes block, std::uint32_t count, float tau, float* target) {
  if (!quanta_dense_is_sound(block, count))
    return {Code::bad_value, "quanta: padding that is set, or an element of both signs"};
  const auto* plus = reinterpret_cast<const std::uint8_t*>(block.data());
  const std::uint8_t* minus = plus + quanta_plane_bytes(count);
  for (std::size_t at = 0; at < count; at += near) {
    const std::size_t some = std::min<std::size_t>(near, count - at);
    sign_add(plus + at / 8, some, 0, tau, target + at);
    sign_add(minus + at / 8, some, 0, -tau, target + at);
  }
  return {};
}

}  // namespace

ThresholdCut::ThresholdCut(const ThresholdSettings& settings, const Bucket& bucket) {
  const auto add = [&](std::size_t first, std::size_t count) {
    if (count == 0) return;
    Segment segment;
    segment.first = static_cast<std::uint32_t>(first);
    segment.count = static_cast<std::uint32_t>(count);
    segment.wanted = static_cast<std::uint32_t>(Quota::of(count, settings.density).wanted);
    segment.first_block = static_cast<std::uint32_t>(blocks.size());
    for (std::size_t at = 0; at < count; at += quanta_block) {
      const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(quanta_block, count - at));
      blocks.push_back({static_cast<std::uint32_t>(first + at), size,
                        static_cast<std::uint32_t>(segments.size()),
                        static_cast<std::uint32_t>(dense)});
      dense += quanta_dense_bytes(size);
    }
    segment.blocks = static_cast<std::uint32_t>(blocks.size()) - segment.first_block;
    segments.push_back(segment);
  };
  if (settings.per_layer) {
    for (const Parameter& parameter : bucket.parameters) add(parameter.offset, parameter.count);
  } else {
    add(0, bucket.elements());
  }
  head = head_bytes(segments.size(), blocks.size());
}

ThresholdCodec::ThresholdCodec(const ThresholdSettings& settings, const Bucket& bucket)
    : settings_(settings),
      name_("bucket" + std::to_string(bucket.id)),
      cut_(settings, bucket),
      taus_(cut_.segments.size(), Tau{settings.tau, settings.tau, 0}),
      tallies_(cut_.blocks.size()),
      lengths_(cut_.blocks.size()) {}

Coded ThresholdCodec::encode(std::span<const float> gradient, std::span<float> residual,
                             std::uint64_t, Bytes out) {
  const float* const g = gradient.data();
  float* const r = residual.empty() ? nullptr : residual.data();
  std::memcpy(out.data(), &layout, sizeof layout);
  for (std::size_t k = 0; k < taus_.size(); ++k) {
    Tau& tau = taus_[k];
    tau.before = tau.next;
    tau.now = tau.next > 0 ? static_cast<float>(tau.next) : estimate(cut_.segments[k], g, r);
    std::memcpy(out.data() + head_bytes(k, 0), &tau.now, sizeof tau.now);
  }
  const std::size_t runs = (cut_.blocks.size() + blocks_at_once - 1) / blocks_at_once;
  parallel_for(runs, [&](std::size_t run) {
    std::byte planes[2][quanta_block / 8];
    const std::size_t end = std::min(cut_.blocks.size(), (run + 1) * blocks_at_once);
    for (std::size_t k = run * blocks_at_once; k < end; ++k) {
      const auto& [first, count, segment, dense] = cut_.blocks[k];
      const std::size_t bytes = quanta_plane_bytes(count);
      tallies_[k] = threshold_pass(taus_[segment].now, g + first, r == nullptr ? r : r + first,
                                   count, reinterpret_cast<std::uint8_t*>(planes[0]),
                                   reinterpret_cast<std::uint8_t*>(planes[1]));
      lengths_[k] = static_cast<std::uint16_t>(
          quanta_encode({planes[0], bytes}, {planes[1], bytes}, count,
                        out.subspan(cut_.head + dense, quanta_dense_bytes(count))));
    }
  });
  bool sound = true;
  for (std::size_t k = 0; k < taus_.size(); ++k) {
    const ThresholdCut::Segment& segment = cut_.segments[k];
    Sweep sweep{0, segment.wanted, 0};
    bool finite = true;
    for (std::size_t b = segment.first_block; b < segment.first_block + segment.blocks; ++b) {
      sweep.sent += tallies_[b].sent;
      sweep.largest = std::max(sweep.largest, tallies_[b].largest);
      finite = finite && tallies_[b].finite;
    }
    if (settings_.tau == 0 && finite)
      taus_[k].next = steered(taus_[k].next, taus_[k].now, sweep, r != nullptr);
    sound = sound && finite;
  }
  return {close_up(out), sound};
}

// The threshold of a step where it is unknown: estimated from evenly spaced elements, so that the
// wanted share of x is sent.
float ThresholdCodec::estimate(const ThresholdCut::Segment& segment, const float* g,
                               const float* r) const {
  const std::uint32_t samples = std::min(segment.count, most_samples);
  std::vector<float> magnitudes(samples);
  for (std::uint32_t k = 0; k < samples; ++k) {
    const std::size_t at = segment.first + sample_at(k, segment.count, samples);
    const float x = std::fabs(r == nullptr ? g[at] : g[at] + r[at]);
    magnitudes[k] = within_limit(g[at]) ? x : 0;
  }
  const std::size_t rank = Quota::of(samples, settings_.density).wanted - 1;
  const auto nth = magnitudes.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(magnitudes.begin(), nth, magnitudes.end(), std::greater<>());
  return std::clamp(*nth, smallest, largest);
}

// Writes the lengths, and moves the blocks to each other. Returns the bytes of the payload.
std::size_t ThresholdCodec::close_up(Bytes out) const {
  std::byte* const lengths = out.data() + head_bytes(cut_.segments.size(), 0);
  std::size_t end = cut_.head;
  for (std::size_t k = 0; k < lengths_.size(); ++k) {
    std::memcpy(lengths + k * sizeof lengths_[k], &lengths_[k], sizeof lengths_[k]);
    std::memmove(out.data() + end, out.data() + cut_.head + cut_.blocks[k].dense, lengths_[k]);
    end += lengths_[k];
  }
  return end;
}

// Checks the head of a payload, and that its blocks fill it.
Status ThresholdCodec::open(ConstBytes payload) const {
  if (payload.size() < cut_.head) return {Code::truncated, "quanta: payload ends in its head"};
  std::uint32_t found = 0;
  std::memcpy(&found, payload.data(), sizeof found);
  if (found != layout) return {Code::bad_value, "quanta: a layout that is unknown or retired"};
  for (std::size_t k = 0; k < cut_.segments.size(); ++k) {
    const float tau = tau_at(payload, k);
    if (!(tau >= smallest && tau <= largest))
      return {Code::bad_value, "quanta: a threshold that no encoder writes"};
  }
  std::size_t end = cut_.head;
  for (std::size_t k = 0; k < cut_.blocks.size(); ++k) {
    const std::size_t length = length_at(cut_, payload, k);
    if (length > quanta_dense_bytes(cut_.blocks[k].count))
      return {Code::bad_value, "quanta: a block is longer than its dense form"};
    end += length;
  }
  if (end != payload.size())
    return {Code::bad_value, "quanta: the lengths of the blocks are not that of the payload"};
  return {};
}

// Adds block k of a payload that open() has checked, where it starts at `at`; moves `at` on.
Status ThresholdCodec::add_block(std::size_t k, ConstBytes payload, std::size_t& at, float share,
                                 float* target) const {
  const ThresholdCut::Block& block = cut_.blocks[k];
  const ConstBytes bytes = payload.subspan(at, length_at(cut_, payload, k));
  const float tau = tau_at(payload, block.segment) * share;
  at += bytes.size();
  return bytes.size() == quanta_dense_bytes(block.count)
             ? add_dense(bytes, block.count, tau, target + block.first)
             : quanta_add_sparse(bytes, block.count, tau, target + block.first);
}

Status ThresholdCodec::add(ConstBytes payload, float share, std::span<float> target) const {
  Status status = open(payload);
  std::size_t at = cut_.head;
  for (std::size_t k = 0; status.ok() && k < cut_.blocks.size(); ++k)
    status = add_block(k, payload, at, share, target.data());
  return status;
}

Status ThresholdCodec::average(std::span<const ConstBytes> payloads, float share,
                               std::span<float> target, int& culprit) const {
  const std::size_t ranks = payloads.size();
  const std::size_t runs = (cut_.blocks.size() + blocks_at_once - 1) / blocks_at_once;
  std::vector<std::size_t> starts(runs * ranks);  // of each run in each payload
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    culprit = static_cast<int>(rank);
    if (const Status status = open(payloads[rank]); !status.ok()) return status;
    std::size_t at = cut_.head;
    for (std::size_t k = 0; k < cut_.blocks.size(); ++k) {
      if (k % blocks_at_once == 0) starts[k / blocks_at_once * ranks + rank] = at;
      at += length_at(cut_, payloads[rank], k);
    }
  }
  std::atomic<int> worst = static_cast<int>(ranks);
  parallel_for(runs, [&](std::size_t run) {
    const std::size_t end = std::min(cut_.blocks.size(), (run + 1) * blocks_at_once);
    for (std::size_t k = run * blocks_at_once; k < end; ++k) {
      std::fill_n(target.data() + cut_.blocks[k].first, cut_.blocks[k].count, 0.0f);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (add_block(k, payloads[rank], starts[run * ranks + rank], share, target.data()).ok())
          continue;
        int known = worst;
        while (static_cast<int>(rank) < known &&
               !worst.compare_exchange_weak(known, static_cast<int>(rank))) {
        }
      }
    }
  });
  culprit = worst;
  if (worst == static_cast<int>(ranks)) return {};
  return {Code::bad_value, "quanta: a block that no encoder writes"};
}

void ThresholdCodec::forget() {
  for (Tau& tau : taus_) tau.next = tau.before;
}

void ThresholdCodec::visit_state(StateVisitor& visitor) {
  if (settings_.tau > 0) return;
  for (std::size_t k = 0; k < taus_.size(); ++k)
    visitor.number(name_ + "/tau" + std::to_string(k), taus_[k].next, Share::local);
}

}  // namespace thinwire
