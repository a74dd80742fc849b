// schemes.cc: `thinwire schemes`: the registry as a table.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/registry.h"

#include <iostream>
#include <memory>

#include "apps/verb.h"

namespace thinwire::apps {
namespace schemes_verb {
namespace {

struct Settings {
  std::string scheme;  // empty: all
  bool markdown = false;
  std::string json;
};

Row row_of(const Scheme& scheme) {
  Row options = Row::array();
  for (const Option& option : scheme.options) {
    options.push_back({{"name", option.name}, {"default", option.fallback}, {"help", option.help}});
  }
  return {{"name", scheme.name},
          {"id", scheme.id},
          {"bits", scheme.bits},
          {"reducible", scheme.reducible},
          {"biased", scheme.biased},
          {"feedback", scheme.feedback},
          {"stochastic", scheme.stochastic},
          {"momentum", scheme.momentum},
          {"paper", scheme.paper},
          {"summary", scheme.summary},
          {"options", options}};
}

const std::vector<Column> columns = {
    {"name", "scheme", Show::text},           {"id", "id", Show::count},
    {"bits", "bits per element", Show::text}, {"reducible", "reducible", Show::text},
    {"biased", "biased", Show::text},         {"feedback", "feedback", Show::text},
    {"stochastic", "stochastic", Show::text}, {"momentum", "momentum", Show::text},
    {"paper", "paper", Show::text},
};

const std::vector<Column> option_columns = {
    {"scheme", "scheme", Show::text},
    {"name", "option", Show::text},
    {"default", "default", Show::text},
    {"help", "meaning", Show::text},
};

// One row per option, under the name of its scheme.
Rows options_of(const Rows& rows) {
  Rows options;
  for (const Row& row : rows) {
    for (Row option : row["options"]) {
      option["scheme"] = row["name"];
      options.push_back(std::move(option));
    }
  }
  return options;
}

void print(const Rows& rows) {
  print_table(std::cout, columns, rows);
  std::cout << "\nOptions, as in dgc:density=0.01,values=sign\n";
  print_table(std::cout, option_columns, options_of(rows));
}

void print_one(const Scheme& scheme) {
  const auto yes = [](bool value) { return value ? "yes" : "no"; };
  std::cout << scheme.name << ": " << scheme.summary << "\n\n"
            << "paper             " << scheme.paper << "\n"
            << "bits per element  " << scheme.bits << "\n"
            << "reducible         " << yes(scheme.reducible) << "\n"
            << "biased            " << yes(scheme.biased) << "\n"
            << "feedback          " << yes(scheme.feedback) << "\n"
            << "stochastic        " << yes(scheme.stochastic) << "\n"
            << "momentum          " << yes(scheme.momentum) << "\n\n";
  if (scheme.options.empty()) {
    std::cout << "It has no options.\n";
    return;
  }
  const Option& first = scheme.options.front();
  std::cout << "Options, as in " << scheme.name << ":" << first.name << "=" << first.fallback
            << "\n";
  print_table(std::cout, {option_columns.begin() + 1, option_columns.end()},
              options_of({row_of(scheme)}));
}

void print_as_markdown(const Rows& rows) {
  print_markdown(std::cout, columns, rows);
  std::cout << '\n';
  print_markdown(std::cout, option_columns, options_of(rows));
}

void run(const Settings& settings) {
  Rows rows;
  if (settings.scheme.empty()) {
    for (const Scheme* scheme : schemes()) rows.push_back(row_of(*scheme));
  } else {
    rows.push_back(row_of(find_scheme(parse_scheme(settings.scheme).scheme)));
  }
  if (settings.markdown) {
    print_as_markdown(rows);
  } else if (settings.scheme.empty()) {
    print(rows);
  } else {
    print_one(find_scheme(rows.front()["name"].get<std::string>()));
  }
  if (!settings.json.empty()) write_json(settings.json, Row::object(), rows);
}

}  // namespace
}  // namespace schemes_verb

void add_schemes(CLI::App& parent) {
  using namespace schemes_verb;
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb =
      add_verb(parent, "schemes",
               "List the compression schemes: what each sends, keeps and takes as options",
               "thinwire schemes\n  thinwire schemes dgc", settings->json);
  verb->add_option("scheme", settings->scheme, "The only scheme to show")->type_name("NAME");
  verb->add_flag("--markdown", settings->markdown, "Print Markdown, as docs/schemes.md embeds it");
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
