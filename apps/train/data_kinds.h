// data_kinds.h: one opener per kind of data, for the table in data.cc, and what they share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "apps/train/data.h"

namespace thinwire::train {

// data_image.cc. `argument` is what stands after the colon, empty without one.
std::unique_ptr<Data> open_digits();
std::unique_ptr<Data> open_cifar10(const std::string& directory);
std::unique_ptr<Data> open_idx(const std::string& directory);
std::unique_ptr<Data> open_synthetic(const std::string& argument);

// data_scaled.cc. `sequence` is handed on.
std::unique_ptr<Data> open_scaled(const std::string& argument, std::int64_t sequence);

// data_text.cc
std::unique_ptr<Data> open_stdlib(std::int64_t sequence);
std::unique_ptr<Data> open_words(const std::string& path, std::int64_t sequence);
std::unique_ptr<Data> open_characters(const std::string& path, std::int64_t sequence);

// data.cc. The whole file; `advice` ends the Error of a file that cannot be read.
std::string read_file(const std::string& path, const std::string& advice);

// Batches of the test set: how many, and where one begins and ends. Both throw for a batch below 1,
// the second for an index outside.
std::int64_t count_batches(std::int64_t examples, std::int64_t batch);
struct Range {
  std::int64_t first, count;
};
Range batch_range(std::int64_t examples, std::int64_t index, std::int64_t batch);

}  // namespace thinwire::train
