// seeds.cc: means over seeds.
// SPDX-License-Identifier: Apache-2.0
#include "apps/seeds.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace thinwire::apps {
namespace {

// What the documents' "final" have under `key`; empty unless all have a number there.
std::vector<double> numbers_of(const std::vector<Row>& documents, const std::string& key) {
  std::vector<double> numbers;
  for (const Row& document : documents) {
    const Row value = document["final"].value(key, Row());
    if (!value.is_number()) return {};
    numbers.push_back(value.get<double>());
  }
  return numbers;
}

double mean_of(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double each : numbers) sum += each;
  return sum / static_cast<double>(numbers.size());
}

bool all_true(const std::vector<Row>& documents, const std::string& key) {
  return std::all_of(documents.begin(), documents.end(), [&](const Row& document) {
    return document["final"].value(key, Row()) == Row(true);
  });
}

std::string range_of(std::vector<double> numbers) {
  std::array<char, 64> text{};
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  std::snprintf(text.data(), text.size(), "%.4f - %.4f", *low, *high);
  return text.data();
}

}  // namespace

Row over_seeds(const std::vector<Row>& documents) {
  Row result = documents[0];
  if (documents.size() == 1) return result;
  Row& final = result["final"];
  for (const auto& [key, value] : documents[0]["final"].items()) {
    const std::vector<double> numbers = numbers_of(documents, key);
    if (!numbers.empty()) final[key] = mean_of(numbers);
    if (value.is_boolean()) final[key] = all_true(documents, key);
  }
  final["seeds"] = documents.size();
  const char* quality = final.contains("perplexity") ? "perplexity" : "accuracy";
  const std::vector<double> numbers = numbers_of(documents, quality);
  if (!numbers.empty()) final["range"] = range_of(numbers);
  return result;
}

}  // namespace thinwire::apps
