// inspect_state.cc: what a checkpoint holds: its step, its settings, its arrays by kind.
// SPDX-License-Identifier: Apache-2.0
#include "apps/inspect_state.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <string_view>

#include "apps/verb.h"
#include "thinwire/core/state.h"

namespace thinwire::apps {
namespace {

constexpr std::string_view state_magic = "twst";
constexpr std::string_view settings_prefix = "settings/";

const std::vector<Column> kind_columns = {
    {"kind", "kind", Show::text},
    {"arrays", "arrays", Show::count},
    {"elements", "elements", Show::count},
    {"norm", "norm", Show::number},
};

// "layer1.weight/residual" is of kind "residual".
Rows kinds_of(const State& state) {
  struct Sum {
    std::size_t arrays = 0, elements = 0;
    double squares = 0;
  };
  std::map<std::string, Sum> kinds;
  for (const auto& [name, entry] : state) {
    if (!entry.is_tensor) continue;
    Sum& sum = kinds[name.substr(name.rfind('/') + 1)];
    sum.arrays += 1;
    sum.elements += entry.values.size();
    for (const float value : entry.values) sum.squares += double{value} * double{value};
  }
  Rows rows;
  for (const auto& [kind, sum] : kinds) {
    rows.push_back({{"kind", kind},
                    {"arrays", sum.arrays},
                    {"elements", sum.elements},
                    {"norm", std::sqrt(sum.squares)}});
  }
  return rows;
}

Row head_of(const State& state, std::size_t bytes) {
  Row head = {{"bytes", bytes}};
  for (const auto& [name, entry] : state) {
    if (name == "training/step") head["step"] = static_cast<std::uint64_t>(entry.number);
    if (!name.starts_with(settings_prefix)) continue;
    const std::size_t equals = name.find('=');
    if (equals == std::string::npos) continue;
    head[name.substr(settings_prefix.size(), equals - settings_prefix.size())] =
        name.substr(equals + 1);
  }
  return head;
}

}  // namespace

bool is_state(ConstBytes bytes) {
  return bytes.size() >= state_magic.size() &&
         std::equal(
             state_magic.begin(), state_magic.end(), bytes.begin(),
             [](char letter, std::byte byte) { return static_cast<std::byte>(letter) == byte; });
}

void inspect_state(const std::string& path, ConstBytes bytes, const std::string& json) {
  State state;
  if (const Status status = deserialize(bytes, state); !status.ok())
    throw BadInput("'" + path + "' is a damaged checkpoint: " + status.what);
  const Row head = head_of(state, bytes.size());
  const Rows rows = kinds_of(state);
  std::cout << "'" << path << "' is a checkpoint, not a frame. `thinwire train --resume` continues "
            << "from it.\n\n";
  print_fields(std::cout, head);
  print_table(std::cout, kind_columns, rows);
  if (!json.empty()) write_json(json, {{"checkpoint", head}}, rows);
}

}  // namespace thinwire::apps
