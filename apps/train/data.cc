// data.cc: the table of data kinds, and code that kinds share.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/data.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/nearest.h"
#include "apps/train/data_kinds.h"
#include "apps/train/data_order.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

enum class Argument { none, optional, required };

struct Kind {
  std::string name, usage, help;
  Argument argument;
  std::unique_ptr<Data> (*open)(const std::string& argument, std::int64_t sequence);
};

const std::vector<Kind>& table() {
  static const std::vector<Kind> kinds = {
      {"digits", "digits", "1797 handwritten digits of 8x8; `make setup` fetches them",
       Argument::none, [](const std::string&, std::int64_t) { return open_digits(); }},
      {"stdlib", "stdlib", "Python's standard library as text, up to 4 MB, by characters",
       Argument::none,
       [](const std::string&, std::int64_t sequence) { return open_stdlib(sequence); }},
      {"cifar10", "cifar10:DIR", "CIFAR-10, the binary version: data_batch_*.bin, test_batch.bin",
       Argument::required, [](const std::string& at, std::int64_t) { return open_cifar10(at); }},
      {"idx", "idx:DIR", "the MNIST family: train-images-idx3-ubyte and its three siblings",
       Argument::required, [](const std::string& at, std::int64_t) { return open_idx(at); }},
      {"text", "text:PATH",
       "a text by words, one sentence per line; or a directory with ptb.{train,test}.txt",
       Argument::required,
       [](const std::string& at, std::int64_t sequence) { return open_words(at, sequence); }},
      {"chars", "chars:PATH", "a text by characters (bytes)", Argument::required,
       [](const std::string& at, std::int64_t sequence) { return open_characters(at, sequence); }},
      {"an4", "an4:DIR", "AN4 speech as 13 cepstra per frame: etc/an4_*.fileids, feat/*.mfc",
       Argument::required, [](const std::string& at, std::int64_t) { return open_an4(at); }},
      {"tones", "tones", "synthetic speech: words whose letters are sounds of 13 channels",
       Argument::none, [](const std::string&, std::int64_t) { return open_tones(); }},
      {"synthetic", "synthetic[:CxHxW:CLASSES]", "noise around one pattern per class; 3x32x32:10",
       Argument::optional, [](const std::string& at, std::int64_t) { return open_synthetic(at); }},
      {"scaled", "scaled:SIZE:DATA", "images of other data at SIZExSIZE; scaled:224:cifar10:DIR",
       Argument::required, open_scaled},
  };
  return kinds;
}

const Kind& find(const std::string& name) {
  std::ostringstream known;
  std::vector<std::string> names;
  for (const Kind& kind : table()) {
    if (kind.name == name) return kind;
    known << (known.tellp() > 0 ? ", " : "") << kind.usage;
    names.push_back(kind.name);
  }
  fail("unknown data '", name, "'; known are ", known.str(), apps::did_you_mean(name, names));
}

}  // namespace

Batch Data::train_batch(std::uint64_t seed, std::uint64_t step, int rank, int world,
                        std::int64_t batch) const {
  return train_batch_of(batch_examples(train_examples(), seed, step, rank, world, batch),
                        {seed, step, rank});
}

std::unique_ptr<Data> open_data(const std::string& spec, std::int64_t sequence) {
  const std::size_t colon = std::min(spec.find(':'), spec.size());
  const std::string name = spec.substr(0, colon);
  const Kind& kind = find(name);
  const std::string argument = colon < spec.size() ? spec.substr(colon + 1) : "";
  if (kind.argument == Argument::none && colon < spec.size()) {
    fail("data '", spec, "': ", kind.name, " takes nothing after it; write ", kind.usage);
  }
  if (kind.argument == Argument::required && argument.empty()) {
    fail("data '", spec, "' does not say where; write ", kind.usage);
  }
  return kind.open(argument, sequence);
}

std::vector<std::pair<std::string, std::string>> data_kinds() {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const Kind& kind : table()) lines.emplace_back(kind.usage, kind.help);
  return lines;
}

std::string read_file(const std::string& path, const std::string& advice) {
  // Opening a directory succeeds; only reading it fails.
  if (std::filesystem::is_directory(path)) {
    fail("'", path, "' is a directory, expected a file; ", advice);
  }
  if (!std::filesystem::exists(path)) fail("there is no file '", path, "'; ", advice);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot open '", path, "': ", std::strerror(errno), "; ", advice);
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad()) fail("cannot read '", path, "' to its end; ", advice);
  return std::move(content).str();
}

std::int64_t count_batches(std::int64_t examples, std::int64_t batch) {
  if (batch < 1) fail("expected a batch of at least 1 example, got ", batch);
  return examples / batch + (examples % batch != 0 ? 1 : 0);
}

Range batch_range(std::int64_t examples, std::int64_t index, std::int64_t batch) {
  const std::int64_t batches = count_batches(examples, batch);
  if (index < 0 || index >= batches) {
    fail("test batch ", index, " does not exist: ", examples, " examples make ", batches,
         " batches of ", batch);
  }
  return {index * batch, std::min(batch, examples - index * batch)};
}

}  // namespace thinwire::train
