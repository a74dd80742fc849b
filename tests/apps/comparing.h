// comparing.h: shared by the tests of `thinwire compare`: a stand-in for train, checks of the page.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/apps/command.h"

namespace thinwire::testing {

inline constexpr const char* fixture = THINWIRE_SOURCE_DIR "/tests/apps/comparison.json";

inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

// Says what is wrong with the page as XML: tags that do not match, bare & or <. That suffices for a
// page without comments and CDATA.
inline std::string fault(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) return "an open tag at the end";
    const std::string inside = page.substr(at + 1, end - at - 1);
    if (contains(inside, "<")) return "a bare < in: " + inside;
    if (std::count(inside.begin(), inside.end(), '"') % 2 != 0) return "quotes in: " + inside;
    if (inside.starts_with("!") || inside.ends_with("/")) continue;
    const std::string name = inside.substr(0, inside.find_first_of(" \n"));
    if (!name.starts_with("/")) {
      open.push_back(name);
    } else if (open.empty() || "/" + open.back() != name) {
      return "<" + name + "> closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  for (std::size_t at = page.find('&'); at != std::string::npos; at = page.find('&', at + 1)) {
    if (page.find(';', at) > at + 6) return "a bare & in: " + page.substr(at, 20);
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

class Compare : public CommandTest {
 protected:
  std::string page_of(const json& comparison) const {
    write(path("kept.json"), comparison.dump());
    const Outcome outcome =
        run("compare --from '" + path("kept.json") + "' --report '" + path("page.html") + "'");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, path("page.html"))) << outcome.out;
    std::string page = read(path("page.html"));
    EXPECT_EQ(fault(page), "");
    for (const char* bad : {"\"nan", "\"inf", ">nan", ">inf", "nan<", "inf<", "nan ", "-nan",
                            "Lnan", "Mnan", "http:", "https:", "src="}) {
      EXPECT_FALSE(contains(page, bad)) << bad;
    }
    EXPECT_EQ(count(page, "<script"), 1u);  // our own
    return page;
  }

  // A program that replaces `thinwire train`: records its arguments, runs `body`, and writes a
  // result where --json says.
  std::string stand_in(const std::string& body = "") const {
    const json result = {{"final",
                          {{"steps", 2},
                           {"loss", 0.5},
                           {"accuracy", 0.75},
                           {"bytes_per_step", 100},
                           {"ratio", 4},
                           {"seconds_per_step", 0.25},
                           {"replicas_identical", true}}},
                         {"rows",
                          {{{"step", 2},
                            {"rate", 0.1},
                            {"loss", 0.5},
                            {"bytes_total", 200},
                            {"seconds_total", 0.5}}}}};
    write(path("result.json"), result.dump());
    write(path("train"), "#!/bin/sh\necho \"$*\" >>'" + path("calls") + "'\n" + body +
                             "\nwhile [ \"$1\" != --json ]; do shift; done\ncp '" +
                             path("result.json") + "' \"$2\"\n");
    std::filesystem::permissions(path("train"), std::filesystem::perms::owner_all);
    return "--trainer '" + path("train") + "' --report '" + path("page.html") + "' ";
  }
};

}  // namespace thinwire::testing
