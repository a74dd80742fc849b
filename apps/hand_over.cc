// hand_over.cc: verbs that need torch live in a separate program, thinwire-torch, beside this one.
// Loading torch takes longer than most other verbs run.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/process.h"
#include "apps/verb.h"

namespace thinwire::apps {
namespace {

bool needs_torch(const std::vector<std::string>& words) {
  if (words.empty()) return false;
  if (words[0] == "bench") return words.size() > 1 && words[1] == "step";
  if (words[0] != "inspect") return words[0] == "train";
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "--model" || word.starts_with("--model=");
  });
}

}  // namespace

void hand_over(char** argv) {
  const std::filesystem::path here = this_program();
  const std::filesystem::path there = here.parent_path() / "thinwire-torch";
  std::vector<std::string> words;
  for (char** word = argv + 1; *word != nullptr; ++word) words.emplace_back(*word);
  if (here == there || !needs_torch(words) || !std::filesystem::exists(there)) return;
  execv(there.c_str(), argv);
}

}  // namespace thinwire::apps
