// data_an4.cc: CMU's AN4: cepstra of people who spell names and numbers, and what they say.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "apps/train/data_kinds.h"
#include "apps/train/data_speech.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t cepstra = 13;
constexpr const char* an4_advice =
    "expected the folder of AN4 with cepstra: etc/an4_train.fileids, etc/an4_train.transcription, "
    "the same of an4_test, and feat/*.mfc";

std::vector<std::string> filled_lines(const std::string& path) {
  const std::string content = read_file(path, an4_advice);
  std::vector<std::string> lines;
  for (std::string_view rest = content; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (!line.empty()) lines.emplace_back(line);
  }
  if (lines.empty()) fail("'", path, "' is empty; ", an4_advice);
  return lines;
}

std::uint32_t big_endian_word(const char* at) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint8_t>(at[i]);
  return value;
}

// Sphinx's format: the number of values, then that many floats of 32 bits, all big-endian.
std::vector<float> read_cepstra(const std::string& path) {
  const std::string content = read_file(path, an4_advice);
  if (content.size() < 4) {
    fail("'", path, "' has ", content.size(), " bytes, expected a header of 4; it is truncated");
  }
  const std::uint64_t announced = big_endian_word(content.data());
  if (content.size() - 4 != 4 * announced) {
    fail("'", path, "' has ", content.size() - 4, " bytes of values, but its header announces ",
         announced, " values of 4; it is truncated, or no file of Sphinx features");
  }
  if (announced == 0 || announced % cepstra != 0) {
    fail("'", path, "' has ", announced, " values, expected a multiple of ", cepstra,
         " (cepstra per frame); it has other features");
  }
  std::vector<float> values;
  for (std::size_t at = 4; at < content.size(); at += 4) {
    values.push_back(std::bit_cast<float>(big_endian_word(content.data() + at)));
    if (!std::isfinite(values.back()))
      fail("'", path, "', value ", values.size(), ": expected a finite number; it is damaged");
  }
  return values;
}

// "<s> YES NO </s> (an406-fcaw-b)", with or without the marks of start and end.
std::string words_of_line(const std::string& line, const std::string& name,
                          const std::string& where) {
  const std::string end = "(" + name + ")";
  if (line.size() < end.size() || line.compare(line.size() - end.size(), end.size(), end) != 0) {
    fail(where, ": expected words and then '", end, "', got '", line,
         "'; the transcripts must be in the order of the fileids");
  }
  std::string words;
  std::string_view rest = std::string_view(line).substr(0, line.size() - end.size());
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    if (word.empty() || word == "<s>" || word == "</s>") continue;
    words += (words.empty() ? "" : " ") + std::string(word);
  }
  return words;
}

// `part` is "train" or "test".
std::vector<Utterance> read_utterances(const std::string& directory, const std::string& part) {
  const std::string stem = directory + "/etc/an4_" + part;
  const std::vector<std::string> names = filled_lines(stem + ".fileids"),
                                 lines = filled_lines(stem + ".transcription");
  if (names.size() != lines.size()) {
    fail("'", stem, ".fileids' has ", names.size(), " utterances, '", stem, ".transcription' has ",
         lines.size(), "; they do not belong together");
  }
  std::vector<Utterance> utterances;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string where = "'" + stem + ".transcription', line " + std::to_string(i + 1);
    const std::string name = fs::path(names[i]).filename().string();
    utterances.push_back({names[i], read_cepstra(directory + "/feat/" + names[i] + ".mfc"),
                          words_of_line(lines[i], name, where)});
  }
  return utterances;
}

}  // namespace

std::unique_ptr<Data> open_an4(const std::string& directory) {
  if (!fs::is_directory(directory)) fail("'", directory, "' is not a directory; ", an4_advice);
  return make_speech(
      {cepstra, read_utterances(directory, "train"), read_utterances(directory, "test")});
}

}  // namespace thinwire::train
