// command.h: runs the built command in its own folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace thinwire::testing {

using nlohmann::json;

struct Outcome {
  int code = -1;
  std::string out, err;
};

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "thinwire_command_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  Outcome run(const std::string& arguments) const {
    // A redirection among the arguments comes last, so it takes effect.
    const std::string line = std::string("'") + THINWIRE_COMMAND + "' >'" + path("out") + "' 2>'" +
                             path("err") + "' " + arguments;
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("out")), read(path("err"))};
  }

  // Runs a verb with --json and returns its rows.
  json rows(const std::string& arguments) const {
    const Outcome outcome = run(arguments + " --json '" + path("rows.json") + "'");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const json document = json::parse(read(path("rows.json")), nullptr, false);
    EXPECT_TRUE(document.contains("rows")) << outcome.err;
    return document.is_object() ? document.value("rows", json::array()) : json::array();
  }

  // Exit code 2, one line on stderr that starts with the command's name and has all `parts`.
  void expect_refused(const std::string& arguments, const std::vector<std::string>& parts) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.err;
    EXPECT_EQ(outcome.err.rfind("thinwire: ", 0), 0u) << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_TRUE(contains(outcome.err, part)) << "no '" << part << "' in: " << outcome.err;
    }
  }

 private:
  std::string folder_;
};

}  // namespace thinwire::testing
