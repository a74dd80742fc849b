// data.h: the handwritten digits: reading them, the fixed split, each worker's batches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/core/error.h"
#include "thinwire/core/random.h"

namespace digits {

constexpr std::size_t pixels = 64, classes = 10;

// Images one after another, with pixels from 0 to 1, and their labels.
struct Images {
  std::vector<float> values;
  std::vector<int> labels;

  std::size_t size() const { return labels.size(); }
  std::span<const float> image(std::size_t i) const {
    return std::span(values).subspan(i * pixels, pixels);
  }
  void add(std::span<const float> image, int label) {
    values.insert(values.end(), image.begin(), image.end());
    labels.push_back(label);
  }
};

// One line is 64 grey values from 0 to 16 and a label from 0 to 9, with commas between them.
inline void read_line(const std::string& line, const std::string& where, Images& out) {
  std::vector<float> numbers;
  for (const char* at = line.c_str(); *at != '\0' && *at != '\r';) {
    char* end = nullptr;
    numbers.push_back(std::strtof(at, &end));
    if (end == at)
      thinwire::fail(where, ": expected a number, got '", std::string_view(at).substr(0, 20), "'");
    at = *end == ',' ? end + 1 : end;
  }
  if (numbers.size() != pixels + 1) {
    thinwire::fail(where, ": expected 64 pixels and a label, got ", numbers.size(),
                   " numbers; is the file truncated?");
  }
  const float label = numbers.back();
  numbers.pop_back();
  for (float& value : numbers) {
    if (!(value >= 0 && value <= 16)) thinwire::fail(where, ": pixel ", value, " is not in 0..16");
    value /= 16;
  }
  const int digit = static_cast<int>(label);
  if (!(label >= 0 && label <= 9) || static_cast<float>(digit) != label) {
    thinwire::fail(where, ": label ", label, " is not a digit");
  }
  out.add(numbers, digit);
}

inline Images read(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    thinwire::fail("cannot open '", path, "'; `make setup` puts the digits at data/digits.csv,",
                   " --data names another file");
  }
  Images images;
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (!line.empty()) read_line(line, path + ", line " + std::to_string(number), images);
  }
  if (images.size() < 1000) {
    thinwire::fail("'", path, "' has ", images.size(), " images, expected 1797;",
                   " is it truncated? Remove it and run `make setup`");
  }
  return images;
}

// Only rank 0 needs the file. The other ranks get its content.
inline Images read_and_share(thinwire::Group& group, const std::string& path) {
  Images images;
  if (group.rank() == 0) images = read(path);
  std::size_t count = images.size();
  group.broadcast(std::as_writable_bytes(std::span(&count, 1)), 0, {}).wait();
  images.values.resize(count * pixels);
  images.labels.resize(count);
  group.broadcast(std::as_writable_bytes(std::span(images.values)), 0, {}).wait();
  group.broadcast(std::as_writable_bytes(std::span(images.labels)), 0, {}).wait();
  return images;
}

struct Split {
  Images train, test;
};

// One fifth is the test set. It is shuffled with a fixed seed, because the file is sorted by writer
// and by digit.
inline Split split(const Images& all) {
  std::vector<std::size_t> order(all.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[thinwire::random_below(1797, i, static_cast<std::uint32_t>(i))]);
  }
  Split split;
  for (std::size_t i = 0; i < order.size(); ++i) {
    (i < order.size() / 5 ? split.test : split.train)
        .add(all.image(order[i]), all.labels[order[i]]);
  }
  return split;
}

// The batch of one step on one worker, drawn from its shard: images rank, rank + world, ... It
// depends only on (seed, rank, step), so a resumed run sees the same batches.
inline Images batch(const Images& train, std::size_t rank, std::size_t world, std::size_t size,
                    std::uint64_t seed, std::uint64_t step) {
  const auto shard = static_cast<std::uint32_t>(train.size() / world);
  Images batch;
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t draw = (step * size + i) * world + rank;
    const std::size_t row = thinwire::random_below(seed, draw, shard) * world + rank;
    batch.add(train.image(row), train.labels[row]);
  }
  return batch;
}

}  // namespace digits
