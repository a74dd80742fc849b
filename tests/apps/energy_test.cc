// energy_test.cc: compares shares of energy with a sort, on awkward sizes.
// SPDX-License-Identifier: Apache-2.0
#include "apps/energy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "thinwire/core/random.h"

namespace thinwire::apps {
namespace {

using Spans = std::vector<std::span<const float>>;

// The slow method: sorts every square.
Energy sorted_energy(std::span<const float> values) {
  std::vector<double> squares;
  for (const float value : values) squares.push_back(std::pow(static_cast<double>(value), 2));
  std::sort(squares.begin(), squares.end(), std::greater<>());
  Energy energy{values.size(), 0, {}};
  for (const double square : squares) energy.total += square;
  for (std::size_t i = 0; i < top_parts.size(); ++i) {
    const double share = 1.0 / static_cast<double>(top_parts[i]);
    const double wanted = std::ceil(share * static_cast<double>(squares.size()) - 1e-6);
    for (std::size_t j = 0; j < static_cast<std::size_t>(wanted); ++j) energy.top[i] += squares[j];
    if (energy.total > 0) energy.top[i] /= energy.total;
  }
  return energy;
}

void expect_like(const Energy& got, const Energy& expected) {
  EXPECT_EQ(got.elements, expected.elements);
  EXPECT_NEAR(got.total, expected.total, 1e-9 * expected.total);
  for (std::size_t i = 0; i < top_parts.size(); ++i) {
    EXPECT_NEAR(got.top[i], expected.top[i], 1e-9) << "the largest 1/" << top_parts[i];
  }
}

// Heavy tails, both signs, zeros and many ties.
std::vector<float> gradient(std::size_t count) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) {
    const auto level = static_cast<int>(random_at(7, i) % 41) - 20;
    const float size = i % 97 == 0 ? 30.0f : 1.0f;
    values.push_back(size * static_cast<float>(level));
  }
  return values;
}

TEST(Energy, IsThatOfASort) {
  for (const std::size_t count : {0u, 1u, 2u, 9u, 10u, 11u, 99u, 100u, 101u, 999u, 1000u, 1001u,
                                  1999u, 2000u, 2001u, 30'011u}) {
    SCOPED_TRACE(count);
    const std::vector<float> values = gradient(count);
    expect_like(energy_of(Spans{values}), sorted_energy(values));
  }
}

TEST(Energy, OfPartsIsThatOfTheWhole) {
  const std::vector<float> values = gradient(5000);
  const std::span<const float> all(values);
  const Energy whole = energy_of(Spans{all});
  expect_like(
      energy_of(Spans{all.first(1), all.subspan(1, 0), all.subspan(1, 998), all.last(4001)}),
      whole);
  double sum = 0;
  for (const auto& part : {all.first(1234), all.last(3766)}) {
    sum += energy_of(Spans{part}).share_of(whole);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(Energy, OfKnownGradients) {
  std::vector<float> values(1000, 0.0f);
  EXPECT_EQ(energy_of(Spans{values}).total, 0);
  EXPECT_EQ(energy_of(Spans{values}).top[2], 0);
  values[123] = -3;  // 9 of 9 + 16 * 1
  for (std::size_t i = 500; i < 516; ++i) values[i] = 1;
  const Energy energy = energy_of(Spans{values});
  EXPECT_EQ(energy.total, 25);
  EXPECT_EQ(energy.top[0], 9.0 / 25);
  EXPECT_EQ(energy.top[1], (9.0 + 9) / 25);
  EXPECT_EQ(energy.top[2], 1);
}

}  // namespace
}  // namespace thinwire::apps
