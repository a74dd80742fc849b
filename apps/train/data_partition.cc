// data_partition.cc: divides the training data: contiguous ranges, or classes by a
// Dirichlet distribution.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/data_partition.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "apps/train/data_order.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

using Examples = std::vector<std::int64_t>;

constexpr double highest_alpha = 1e6;

// The numbers of one stream in sequence.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(key) {}

  // Strictly between 0 and 1.
  double unit() { return (static_cast<double>(random_at(key_, next_++) >> 11) + 0.5) * 0x1p-53; }

  double normal() {
    const double radius = std::sqrt(-2 * std::log(unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }

 private:
  std::uint64_t key_, next_ = 0;
};

// The logarithm of a draw from Gamma(alpha): Marsaglia and Tsang for alpha + 1, times U^(1 /
// alpha). The logarithm, because for a small alpha the draw itself is often below the smallest
// double.
double log_gamma_draw(double alpha, Draws draws) {
  const double d = alpha + 2.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = draws.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(draws.unit()) >= x * x / 2 + d - d * v + d * std::log(v)) continue;
    return std::log(d * v) + std::log(draws.unit()) / alpha;
  }
}

// The workers' shares, with sum 1.
std::vector<double> dirichlet(double alpha, int workers, std::uint64_t key) {
  std::vector<double> shares;
  for (int w = 0; w < workers; ++w)
    shares.push_back(log_gamma_draw(alpha, Draws(random_at(key, static_cast<std::uint64_t>(w)))));
  const double highest = *std::ranges::max_element(shares);
  double sum = 0;
  for (double& share : shares) sum += share = std::exp(share - highest);
  for (double& share : shares) share /= sum;
  return shares;
}

std::vector<Examples> by_class(const Examples& classes) {
  std::vector<Examples> members;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const auto c = static_cast<std::size_t>(classes[i]);
    if (c >= members.size()) members.resize(c + 1);
    members[c].push_back(static_cast<std::int64_t>(i));
  }
  return members;
}

// Deals out the shuffled members of a class, one contiguous range to each worker.
void deal(const Examples& members, const std::vector<double>& parts, std::uint64_t key,
          std::vector<Examples>& shares) {
  double sum = 0;
  std::uint64_t next = 0;
  for (std::size_t w = 0; w < shares.size(); ++w) {
    sum += parts[w];
    const auto round = static_cast<std::uint64_t>(
        std::llround(std::min(sum, 1.0) * static_cast<double>(members.size())));
    const std::uint64_t end = w + 1 == shares.size() ? members.size() : round;
    for (; next < end; ++next) shares[w].push_back(members[permuted(key, next, members.size())]);
  }
}

// A worker left with nothing takes every second example of the largest share: some data, of few
// classes like the other workers' data. Drawing again instead might never end when alpha is small.
void fill_empty(std::vector<Examples>& shares) {
  const auto size = [](const Examples& share) { return share.size(); };
  for (Examples& empty : shares) {
    if (!empty.empty()) continue;
    Examples& largest = *std::ranges::max_element(shares, {}, size);
    Examples kept;
    for (std::size_t i = 0; i < largest.size(); ++i)
      (i % 2 == 0 ? kept : empty).push_back(largest[i]);
    largest = std::move(kept);
  }
}

std::vector<Examples> dirichlet_shares(double alpha, const Examples& classes, std::uint64_t seed,
                                       int workers) {
  std::vector<Examples> shares(static_cast<std::size_t>(workers));
  const std::vector<Examples> members = by_class(classes);
  for (std::size_t c = 0; c < members.size(); ++c) {
    const std::uint64_t key = random_at(stream_key(seed, Stream::share), c);
    const std::uint64_t parts = random_at(key, 0), order = random_at(key, 1);
    deal(members[c], dirichlet(alpha, workers, parts), order, shares);
  }
  fill_empty(shares);
  return shares;
}

std::vector<Examples> stretches(std::int64_t examples, int workers) {
  std::vector<Examples> shares(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    for (std::int64_t i = examples * w / workers; i < examples * (w + 1) / workers; ++i)
      shares[static_cast<std::size_t>(w)].push_back(i);
  }
  return shares;
}

}  // namespace

Partition Partition::parse(std::string_view text) {
  constexpr std::string_view dirichlet = "dirichlet:";
  if (text == "iid") return {Kind::iid, 0};
  if (text == "contiguous") return {Kind::contiguous, 0};
  double alpha = 0;
  const char* const end = text.data() + text.size();
  if (text.starts_with(dirichlet)) {
    const auto [rest, error] = std::from_chars(text.data() + dirichlet.size(), end, alpha);
    if (error == std::errc{} && rest == end && alpha >= 1 / highest_alpha && alpha <= highest_alpha)
      return {Kind::dirichlet, alpha};
  }
  fail("partition '", text,
       "': expected iid, contiguous, or dirichlet:ALPHA with an alpha from 1e-6 to 1e6, such as "
       "dirichlet:0.5");
}

std::string Partition::str() const {
  if (kind == Kind::iid) return "iid";
  if (kind == Kind::contiguous) return "contiguous";
  char text[48];
  std::snprintf(text, sizeof text, "dirichlet:%.9g", alpha);
  return text;
}

Shares::Shares(const Partition& partition, std::int64_t examples, const Examples& classes,
               std::uint64_t seed, int workers)
    : examples_(examples), seed_(seed), workers_(workers) {
  if (workers < 1 || examples < workers) {
    fail("partition '", partition.str(), "': ", examples, " training examples for ", workers,
         " workers, expected at least one each; use fewer workers");
  }
  if (partition.kind == Partition::Kind::contiguous) shares_ = stretches(examples, workers);
  if (partition.kind != Partition::Kind::dirichlet) return;
  if (classes.size() != static_cast<std::size_t>(examples)) {
    fail("partition '", partition.str(), "' deals out classes, but the examples of this ",
         "data have none; for text use contiguous or iid");
  }
  shares_ = dirichlet_shares(partition.alpha, classes, seed, workers);
}

std::vector<std::int64_t> Shares::batch(std::uint64_t step, int rank, std::int64_t batch) const {
  if (shares_.empty()) return batch_examples(examples_, seed_, step, rank, workers_, batch);
  if (batch < 1 || rank < 0 || rank >= workers_) {
    fail("expected a batch of at least 1 and a rank below the number of workers, got batch ", batch,
         ", rank ", rank, " of ", workers_);
  }
  const Examples& share = shares_[static_cast<std::size_t>(rank)];
  const std::uint64_t key =
      random_at(stream_key(seed_, Stream::order), static_cast<std::uint64_t>(rank));
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::uint64_t place = step * static_cast<std::uint64_t>(batch) + i;
    const std::uint64_t pass = place / share.size();
    chosen[i] = share[permuted(random_at(key, pass), place % share.size(), share.size())];
  }
  return chosen;
}

}  // namespace thinwire::train
