// data_text.cc: text as a stream of tokens (words or characters), divided into sequences.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "apps/train/data_kinds.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

namespace fs = std::filesystem;

using Tokens = std::vector<std::int64_t>;

// Sequence i is tokens [i * length, (i + 1) * length). Its targets are shifted by one token.
class TextData : public Data {
 public:
  TextData(Tokens train, Tokens test, std::int64_t vocabulary, std::int64_t sequence)
      : train_(std::move(train)),
        test_(std::move(test)),
        vocabulary_(vocabulary),
        sequence_(sequence) {}

  Problem problem() const override { return {Domain::text, 1, 1, 1, vocabulary_}; }
  std::int64_t train_examples() const override { return sequences(train_); }

  Batch train_batch_of(const std::vector<std::int64_t>& examples, const Draw&) const override {
    return gather(train_, examples);
  }

  std::int64_t test_batches(std::int64_t batch) const override {
    return count_batches(sequences(test_), batch);
  }

  Batch test_batch(std::int64_t index, std::int64_t batch) const override {
    const Range range = batch_range(sequences(test_), index, batch);
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(range.count));
    std::iota(chosen.begin(), chosen.end(), range.first);
    return gather(test_, chosen);
  }

 private:
  std::int64_t sequences(const Tokens& tokens) const {
    return (static_cast<std::int64_t>(tokens.size()) - 1) / sequence_;
  }

  Batch gather(const Tokens& tokens, const std::vector<std::int64_t>& chosen) const {
    const auto size = static_cast<std::int64_t>(chosen.size());
    Batch batch{torch::empty({size, sequence_}, torch::kInt64),
                torch::empty({size, sequence_}, torch::kInt64)};
    auto* input = batch.input.data_ptr<std::int64_t>();
    auto* target = batch.target.data_ptr<std::int64_t>();
    for (const std::int64_t example : chosen) {
      const auto first = tokens.begin() + example * sequence_;
      input = std::copy_n(first, sequence_, input);
      target = std::copy_n(first + 1, sequence_, target);
    }
    return batch;
  }

  Tokens train_, test_;
  std::int64_t vocabulary_, sequence_;
};

void check_length(const Tokens& tokens, const char* part, const std::string& where,
                  std::int64_t sequence) {
  if (static_cast<std::int64_t>(tokens.size()) > sequence) return;
  fail(where, ": the ", part, " text has ", tokens.size(), " tokens, a sequence of ", sequence,
       " needs ", sequence + 1, "; use a shorter sequence or a longer text");
}

std::unique_ptr<Data> make_text(Tokens train, Tokens test, std::int64_t vocabulary,
                                std::int64_t sequence, const std::string& where) {
  check_length(train, "training", where, sequence);
  check_length(test, "test", where, sequence);
  return std::make_unique<TextData>(std::move(train), std::move(test), vocabulary, sequence);
}

void check_sequence(std::int64_t sequence) {
  if (sequence < 1) fail("expected a sequence of at least 1 token, got ", sequence);
}

std::string read_text(const std::string& path) {
  std::string text = read_file(path, "name a text file");
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    fail("'", path, "' is empty, expected text; name another file");
  }
  return text;
}

struct Split {
  std::string_view train, test;
};

// ---- words

using Words = std::vector<std::string_view>;
constexpr std::string_view end_of_sentence = "<eos>", unknown = "<unk>";
constexpr std::string_view blanks = " \t\r\n\v\f";

// Adds the words of a line, then <eos>. An empty line is not a sentence.
void add_words(std::string_view line, Words& out) {
  const std::size_t before = out.size();
  for (std::size_t at = line.find_first_not_of(blanks); at < line.size();) {
    const std::size_t end = std::min(line.find_first_of(blanks, at), line.size());
    out.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(blanks, end);
  }
  if (out.size() > before) out.push_back(end_of_sentence);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    lines.push_back(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.size(), lines.back().size() + 1));
  }
  return lines;
}

Words words_of(std::string_view text) {
  Words words;
  for (const std::string_view line : lines_of(text)) add_words(line, words);
  return words;
}

// Splits by lines: the first nine tenths for training, the last twentieth for the test. The part
// between is left for a user's own validation, as in the three files of PTB.
Split split_lines(std::string_view text) {
  const std::vector<std::string_view> lines = lines_of(text);
  const auto offset = [&](std::size_t line) {
    return line < lines.size() ? static_cast<std::size_t>(lines[line].data() - text.data())
                               : text.size();
  };
  return {text.substr(0, offset(lines.size() * 90 / 100)),
          text.substr(offset(lines.size() * 95 / 100))};
}

using Vocabulary = std::unordered_map<std::string_view, std::int64_t>;

// The most frequent word is 0. Ties are in byte order. <unk> is always a word.
Vocabulary vocabulary_of(const Words& words) {
  std::unordered_map<std::string_view, std::int64_t> counts{{unknown, 0}};
  for (const std::string_view word : words) ++counts[word];
  std::vector<std::pair<std::int64_t, std::string_view>> order;
  for (const auto& [word, count] : counts) order.emplace_back(-count, word);
  std::sort(order.begin(), order.end());
  Vocabulary vocabulary;
  for (const auto& [count, word] : order) {
    vocabulary.emplace(word, static_cast<std::int64_t>(vocabulary.size()));
  }
  return vocabulary;
}

Tokens tokens_of(const Words& words, const Vocabulary& vocabulary) {
  Tokens tokens;
  tokens.reserve(words.size());
  for (const std::string_view word : words) {
    const auto known = vocabulary.find(word);
    tokens.push_back((known != vocabulary.end() ? known : vocabulary.find(unknown))->second);
  }
  return tokens;
}

std::unique_ptr<Data> make_words(const Split& text, std::int64_t sequence,
                                 const std::string& where) {
  const Words train = words_of(text.train);
  const Vocabulary vocabulary = vocabulary_of(train);
  return make_text(tokens_of(train, vocabulary), tokens_of(words_of(text.test), vocabulary),
                   static_cast<std::int64_t>(vocabulary.size()), sequence, where);
}

// ---- characters

// The last twentieth is the test set.
Split split_characters(std::string_view text) {
  const std::size_t train = text.size() - text.size() / 20;
  return {text.substr(0, train), text.substr(train)};
}

// The vocabulary is every byte that occurs, including in the test set: at most 256.
std::unique_ptr<Data> make_characters(const Split& text, std::int64_t sequence,
                                      const std::string& where) {
  std::array<std::int64_t, 256> code{};
  for (const std::string_view part : {text.train, text.test}) {
    for (const char byte : part) code[static_cast<std::uint8_t>(byte)] = 1;
  }
  std::int64_t vocabulary = 0;
  for (std::int64_t& at : code) at = at != 0 ? vocabulary++ : 0;
  const auto encode = [&](std::string_view part) {
    Tokens tokens(part.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      tokens[i] = code[static_cast<std::uint8_t>(part[i])];
    }
    return tokens;
  };
  return make_text(encode(text.train), encode(text.test), vocabulary, sequence, where);
}

// ---- Python's standard library

std::string stdlib_directory() {
  constexpr const char* command =
      "python3 -c \"import sysconfig; print(sysconfig.get_path('stdlib'))\" 2>/dev/null";
  std::string answer;
  const auto close = [](std::FILE* file) { pclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen(command, "r"), close);
  std::array<char, 512> part{};
  while (pipe && std::fgets(part.data(), part.size(), pipe.get())) answer += part.data();
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  if (answer.empty() || !fs::is_directory(answer)) {
    fail("data 'stdlib': python3 does not report where its library is (got '", answer,
         "'); install python3, or use chars:PATH");
  }
  return answer;
}

std::vector<std::string> python_files(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file() && entry.path().extension() == ".py") {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::unique_ptr<Data> open_words(const std::string& path, std::int64_t sequence) {
  check_sequence(sequence);
  const std::string where = "'" + path + "'";
  if (fs::is_directory(path)) {
    const std::string advice = "a directory of text holds ptb.train.txt and ptb.test.txt";
    const std::string train = read_file(path + "/ptb.train.txt", advice);
    const std::string test = read_file(path + "/ptb.test.txt", advice);
    return make_words({train, test}, sequence, where);
  }
  const std::string text = read_text(path);
  return make_words(split_lines(text), sequence, where);
}

std::unique_ptr<Data> open_characters(const std::string& path, std::int64_t sequence) {
  check_sequence(sequence);
  const std::string text = read_text(path);
  return make_characters(split_characters(text), sequence, "'" + path + "'");
}

std::unique_ptr<Data> open_stdlib(std::int64_t sequence) {
  check_sequence(sequence);
  constexpr std::size_t enough = 4'000'000;
  const std::string directory = stdlib_directory();
  std::string train, test;
  for (const std::string& file : python_files(directory)) {
    if (train.size() + test.size() >= enough) break;
    const std::string text = read_file(file, "or use chars:PATH");
    // Splits every file, so that training and test cover the same topics.
    const Split split = split_characters(text);
    train += split.train;
    test += split.test;
  }
  return make_characters({train, test}, sequence, "the *.py in '" + directory + "'");
}

}  // namespace thinwire::train
