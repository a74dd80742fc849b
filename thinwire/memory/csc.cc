// csc.cc: the pass over a bucket in threads, and sending chunks.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/csc.h"

#include <algorithm>
#include <cmath>

#include "thinwire/core/parallel.h"

namespace thinwire {
namespace {

// Below this, waking a thread costs more than it saves.
constexpr std::size_t least_per_thread = std::size_t{1} << 17;

float* at(std::vector<float>& values, std::size_t first) {
  return values.empty() ? nullptr : values.data() + first;
}

}  // namespace

bool all_finite(std::span<const double> sums) {
  return std::all_of(sums.begin(), sums.end(), [](double sum) { return std::isfinite(sum); });
}

CscMemory::CscMemory(const Bucket& bucket, const CscGrid& grid, const MemoryRule& rule,
                     const SummedValues& values)
    : bucket_(bucket), grid_(grid), rule_(rule), values_(values) {
  if (has_residual(rule.accumulate)) v_.resize(grid.elements);
  if (has_momentum(rule.accumulate)) u_.resize(grid.elements);
}

void CscMemory::take_in(std::span<const float> gradient, std::size_t piece,
                        std::vector<double>& sums) {
  const CscGrid pieces{grid_.elements, piece};
  sums.resize(pieces.count());
  const std::size_t shares = std::clamp<std::size_t>(grid_.elements / least_per_thread, 1,
                                                     static_cast<std::size_t>(threads()));
  parallel_for(shares, [&](std::size_t share) {
    const std::size_t end = sums.size() * (share + 1) / shares;
    for (std::size_t i = sums.size() * share / shares; i < end; ++i) {
      const std::size_t first = pieces.first(i), count = pieces.size(i);
      settle(first / grid_.chunk, (first + count + grid_.chunk - 1) / grid_.chunk);
      sums[i] = csc_pass(rule_, gradient.data() + first, at(u_, first), at(v_, first), count);
    }
  });
  sent_.clear();
}

// Replaces each sent chunk in the range with its rounding error.
void CscMemory::settle(std::size_t first_chunk, std::size_t end_chunk) {
  for (auto pick = std::lower_bound(sent_.begin(), sent_.end(), first_chunk);
       pick != sent_.end() && *pick < end_chunk; ++pick) {
    const std::size_t first = grid_.first(*pick), count = grid_.size(*pick);
    if (!v_.empty()) values_.keep_rest(std::span(v_).subspan(first, count));
    if (!u_.empty() && velocity_ == Velocity::mask)
      std::fill_n(u_.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0f);
  }
}

void CscMemory::send(Picks picks, Velocity velocity, Bytes out) {
  packed_.resize(grid_.packed(picks.size()));
  grid_.gather(v_.data(), picks, packed_.data());
  values_.write(packed_, out);
  sent_.assign(picks.begin(), picks.end());
  velocity_ = velocity;
}

void CscMemory::forget(std::span<const float> gradient) {
  take_out(rule_, 1.0f, gradient.data(), nullptr, u_.data(), v_.data(), gradient.size());
}

void CscMemory::visit_state(StateVisitor& visitor) {
  settle(0, grid_.count());
  sent_.clear();
  if (!u_.empty()) visit_by_parameter(visitor, bucket_, "u", u_, Share::summed);
  if (!v_.empty()) visit_by_parameter(visitor, bucket_, "v", v_, Share::summed);
}

}  // namespace thinwire
