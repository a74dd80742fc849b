// nearest.h: finds the known word closest to a mistyped one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire::apps {

// The number of letters that must be added, removed, replaced or swapped with a neighbour.
inline std::size_t edits(std::string_view from, std::string_view to) {
  std::vector<std::size_t> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (std::size_t k = 0; k <= to.size(); ++k) last[k] = k;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (std::size_t k = 1; k <= to.size(); ++k) {
      row[k] = std::min({row[k - 1] + 1, last[k] + 1, last[k - 1] + (from[i - 1] != to[k - 1])});
      if (i > 1 && k > 1 && from[i - 1] == to[k - 2] && from[i - 2] == to[k - 1])
        row[k] = std::min(row[k], before[k - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[to.size()];
}

// "; did you mean 'train'?", or empty when no known word is close: at most one edit per three
// letters, and one for shorter words.
template <typename Words>
std::string did_you_mean(std::string_view word, const Words& known) {
  std::size_t fewest = std::max<std::size_t>(1, word.size() / 3) + 1;
  std::string nearest;
  for (const std::string& each : known) {
    const std::size_t count = edits(word, each);
    if (count >= fewest || count >= each.size()) continue;
    fewest = count;
    nearest = each;
  }
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace thinwire::apps
