// data_kinds.h: one opener per kind of data, for the table in data.cc, and shared helpers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "apps/train/data.h"

namespace thinwire::train {

// data_image.cc. `argument` is the text after the colon, or empty.
std::unique_ptr<Data> open_digits();
std::unique_ptr<Data> open_cifar10(const std::string& directory);
std::unique_ptr<Data> open_idx(const std::string& directory);
std::unique_ptr<Data> open_synthetic(const std::string& argument);

// data_scaled.cc. `sequence` is passed on.
std::unique_ptr<Data> open_scaled(const std::string& argument, std::int64_t sequence);

// data_text.cc
std::unique_ptr<Data> open_stdlib(std::int64_t sequence);
std::unique_ptr<Data> open_words(const std::string& path, std::int64_t sequence);
std::unique_ptr<Data> open_characters(const std::string& path, std::int64_t sequence);

// data_an4.cc and data_speech.cc
std::unique_ptr<Data> open_an4(const std::string& directory);
std::unique_ptr<Data> open_tones();

// data.cc. Reads the whole file. If that fails, `advice` ends the Error.
std::string read_file(const std::string& path, const std::string& advice);

// Batches of the test set: how many there are, and where one begins and ends. Both throw for a
// batch below 1, the second also for an index out of range.
std::int64_t count_batches(std::int64_t examples, std::int64_t batch);
struct Range {
  std::int64_t first, count;
};
Range batch_range(std::int64_t examples, std::int64_t index, std::int64_t batch);

}  // namespace thinwire::train
