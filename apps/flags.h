// flags.h: what the values of flags may be. They are checked before any work, and each unusable
// value gets an error text. For Option::check().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace thinwire::apps {

// Accepts finite numbers in the range. Rejects NaN.
CLI::Validator number_in(double low, double high);
CLI::Validator above_zero();
CLI::Validator zero_or_more();

CLI::Validator whole_in(std::int64_t low, std::int64_t high);
CLI::Validator whole_from(std::int64_t low);

CLI::Validator one_of(const std::vector<std::string>& choices);

// Says what is wrong with a path to write to; empty if nothing is. Writes a file beside it and
// removes it again, so that a full or read-only disk is found before minutes of work, not after.
std::string check_output_path(const std::string& path);

// Says what is wrong with a file to read; empty if nothing is.
std::string check_input_path(const std::string& path);

}  // namespace thinwire::apps
