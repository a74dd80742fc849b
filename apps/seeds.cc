// seeds.cc: means over seeds.
// SPDX-License-Identifier: Apache-2.0
#include "apps/seeds.h"

#include <algorithm>

#include "apps/report_parts.h"

namespace thinwire::apps {
namespace {

// The numbers under `key` in each "final"; empty unless all documents have one.
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

// The part of the rows that curves need, one list per seed.
Row rows_of_seeds(const std::vector<Row>& documents) {
  Row seeds = Row::array();
  for (const Row& document : documents) {
    Row rows = Row::array();
    for (const Row& row : document.value("rows", Row::array())) {
      Row brief = Row::object();
      for (const char* key : {"step", "loss", "accuracy", "perplexity", "word_error", "bytes_total",
                              "seconds_total", "estimated_seconds_total"}) {
        if (row.contains(key)) brief[key] = row[key];
      }
      rows.push_back(std::move(brief));
    }
    seeds.push_back(std::move(rows));
  }
  return seeds;
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
  const std::vector<double> numbers = numbers_of(documents, quality_of(final));
  if (!numbers.empty()) {
    const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
    final["lowest"] = *low;
    final["highest"] = *high;
  }
  result["seed_rows"] = rows_of_seeds(documents);  // last, because adding a key moves "final"
  return result;
}

}  // namespace thinwire::apps
