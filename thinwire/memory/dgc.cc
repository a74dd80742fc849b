// dgc.cc: the pass over a bucket in threads, with lists of bounded length.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/dgc.h"

#include <algorithm>
#include <limits>

#include "thinwire/core/parallel.h"
#include "thinwire/memory/largest.h"

namespace thinwire {
namespace {

constexpr float smallest_positive = std::numeric_limits<float>::denorm_min();
// Below this, waking a thread costs more than it saves.
constexpr std::size_t least_per_thread = std::size_t{1} << 17;

}  // namespace

// Survivors of a share, of which the first `size` are valid, with room for `limit` of them and a
// block. The caller prunes the list when it exceeds `limit` after a block.
struct DgcMemory::List {
  Survivors all;
  std::size_t size = 0;

  // Reuses the memory of an earlier step, unless that was for a far higher density.
  void reset(std::size_t room, bool with_velocity) {
    size = 0;
    if (all.index.size() >= room && all.index.size() / 4 <= room) return;
    all.index = std::vector<std::uint32_t>(room);
    all.value = std::vector<float>(room);
    all.velocity = std::vector<float>(with_velocity ? room : 0);
  }

  Picked end() {
    return {all.index.data() + size, all.value.data() + size,
            all.velocity.empty() ? nullptr : all.velocity.data() + size};
  }

  std::uint64_t key(std::size_t i) const { return magnitude_key(all.value[i], all.index[i]); }

  // Keeps survivors whose key is at least `least`, in order, and passes the others to `drop`.
  template <typename Drop>
  void filter(std::uint64_t least, const Drop& drop) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i) {
      if (key(i) < least) {
        drop(all, i);
        continue;
      }
      all.index[kept] = all.index[i];
      all.value[kept] = all.value[i];
      if (!all.velocity.empty()) all.velocity[kept] = all.velocity[i];
      ++kept;
    }
    size = kept;
  }

  void append_keys(std::vector<std::uint64_t>& keys) const {
    for (std::size_t i = 0; i < size; ++i) keys.push_back(key(i));
  }
};

DgcMemory::DgcMemory(const Bucket& bucket, const DgcMemoryOptions& options)
    : bucket_(bucket), options_(options) {
  const std::size_t elements = bucket.elements();
  if (has_residual(options.accumulate)) v_.resize(elements);
  if (has_momentum(options.accumulate)) u_.resize(elements);
  if (options.per_layer) {
    for (const Parameter& parameter : bucket.parameters)
      segments_.push_back({parameter.offset, parameter.count, {}});
  } else {
    segments_.push_back({0, elements, {}});
  }
}

DgcMemory::~DgcMemory() = default;

std::size_t most_survivors(const Bucket& bucket, const DgcMemoryOptions& options, double density) {
  if (!options.per_layer) return Quota::of(bucket.elements(), density).most;
  std::size_t sum = 0;
  for (const Parameter& parameter : bucket.parameters)
    sum += Quota::of(parameter.count, density).most;
  return sum;
}

bool DgcMemory::step(std::span<const float> gradient, float scale, double density, Survivors& out) {
  out.index.clear();
  out.value.clear();
  out.velocity.clear();
  bool finite = true;
  for (Segment& segment : segments_) {
    const Quota quota = Quota::of(segment.count, density);
    if (density != density_) segment.threshold.value = 0;
    DgcRule rule{options_.accumulate, options_.momentum, scale, smallest_positive};
    if (!options_.exact)
      rule.threshold = std::max(static_cast<float>(segment.threshold.value), smallest_positive);
    if (!sweep(segment, rule, gradient, quota, out)) finite = false;
  }
  density_ = density;
  // The pass always masks. There are few survivors, so restoring their momentum is cheap.
  if (!options_.mask) {
    for (std::size_t i = 0; i < out.velocity.size(); ++i) u_[out.index[i]] = out.velocity[i];
  }
  return finite;
}

bool DgcMemory::sweep(Segment& segment, DgcRule rule, std::span<const float> gradient,
                      const Quota& quota, Survivors& out) {
  const std::size_t most = options_.exact ? quota.wanted : quota.most;
  const std::size_t shares = std::clamp<std::size_t>(segment.count / least_per_thread, 1,
                                                     static_cast<std::size_t>(threads()));
  const std::size_t limit = 2 * most + dgc_block;
  lists_.resize(shares);
  std::vector<char> finite(shares, 1);
  const auto put_back = [this](const Survivors& all, std::size_t i) { restore(all, i); };

  parallel_for(shares, [&](std::size_t share) {
    List& list = lists_[share];
    const std::size_t from = segment.count * share / shares,
                      to = segment.count * (share + 1) / shares;
    list.reset(std::min(limit, to - from) + dgc_block, !u_.empty());
    DgcRule mine = rule;
    std::vector<std::uint64_t> keys;
    for (std::size_t at = from; at < to; at += dgc_block) {
      const std::size_t first = segment.first + at, count = std::min(dgc_block, to - at);
      const DgcTally tally =
          dgc_pass(mine, gradient.data() + first, u_.empty() ? nullptr : u_.data() + first,
                   v_.empty() ? nullptr : v_.data() + first, count,
                   static_cast<std::uint32_t>(first), list.end());
      list.size += tally.picked;
      if (!tally.finite) finite[share] = 0;
      if (list.size <= limit) continue;
      // The list is too long. Only its `most` largest elements can be among the largest of all. One
      // more stays, which tells below that there were too many. The smallest becomes the threshold.
      keys.clear();
      list.append_keys(keys);
      const std::uint64_t least = nth_largest(keys, most + 1);
      list.filter(least, put_back);
      mine.threshold = magnitude_of(least);
    }
  });

  std::size_t total = 0;
  for (const List& list : lists_) total += list.size;
  if (total > most) {
    std::vector<std::uint64_t> keys;
    keys.reserve(total);
    for (const List& list : lists_) list.append_keys(keys);
    const std::uint64_t least = nth_largest(keys, quota.wanted);
    for (List& list : lists_) list.filter(least, put_back);
    segment.threshold.value = magnitude_of(least);
  } else if (!options_.exact) {
    segment.threshold.steer(total, quota.wanted);
  }
  for (const List& list : lists_) {
    const auto append = [&](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.begin() + static_cast<std::ptrdiff_t>(list.size));
    };
    append(out.index, list.all.index);
    append(out.value, list.all.value);
    if (!u_.empty()) append(out.velocity, list.all.velocity);
  }
  return std::find(finite.begin(), finite.end(), 0) == finite.end();
}

void DgcMemory::restore(const Survivors& all, std::size_t i) {
  if (!v_.empty()) v_[all.index[i]] = all.value[i];
  if (!u_.empty()) u_[all.index[i]] = all.velocity[i];
}

void DgcMemory::settle(const Survivors& survivors, std::span<const float> sent) {
  if (v_.empty()) return;
  for (std::size_t i = 0; i < survivors.size(); ++i)
    v_[survivors.index[i]] = survivors.value[i] - sent[i];
}

void DgcMemory::undo(const Survivors& survivors) {
  for (std::size_t i = 0; i < survivors.size(); ++i) restore(survivors, i);
}

void DgcMemory::forget(std::span<const float> gradient, float scale) {
  take_out({options_.accumulate, options_.momentum}, scale, gradient.data(), nullptr, u_.data(),
           v_.data(), gradient.size());
  for (Segment& segment : segments_) segment.threshold.value = 0;
}

void DgcMemory::visit_state(StateVisitor& visitor) {
  if (!u_.empty()) visit_by_parameter(visitor, bucket_, "u", u_, Share::summed);
  if (!v_.empty()) visit_by_parameter(visitor, bucket_, "v", v_, Share::summed);
  const std::string prefix = "bucket" + std::to_string(bucket_.id);
  visitor.number(prefix + "/density", density_, Share::local);
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    visitor.number(prefix + "/threshold" + std::to_string(i), segments_[i].threshold.value,
                   Share::local);
  }
}

}  // namespace thinwire
