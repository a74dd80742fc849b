// flags.cc: checks of flag values, and their error texts.
// SPDX-License-Identifier: Apache-2.0
#include "apps/flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "apps/nearest.h"
#include "apps/table.h"

namespace thinwire::apps {
namespace {

template <typename Number>
bool reads(const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && rest == end;
}

// Rejects values that are not `good`, with "expected WHAT, got 'TEXT'".
template <typename Number, typename Good>
CLI::Validator expects(const std::string& what, Good good) {
  return {[=](std::string& text) {
            Number value{};
            if (reads(text, value) && good(value)) return std::string();
            return "expected " + what + ", got '" + text + "'";
          },
          ""};  // the flag's own help says it
}

std::string text_of(double value) { return printed("%.9g", value); }

std::string cannot(const std::string& path, const std::string& why) {
  return "cannot write '" + path + "': " + why;
}

// Leaves no file behind. Returns 0 or an errno.
int try_to_write(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  const std::array<char, 4096> bytes{};
  int error = 0;
  if (write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    error = errno != 0 ? errno : ENOSPC;
  if (close(file) != 0 && error == 0) error = errno;  // some full disks fail only here
  unlink(path.c_str());
  return error;
}

}  // namespace

CLI::Validator number_in(double low, double high) {
  return expects<double>("a number from " + text_of(low) + " to " + text_of(high),
                         [=](double value) { return value >= low && value <= high; });
}

CLI::Validator above_zero() {
  return expects<double>("a finite number above 0",
                         [](double value) { return std::isfinite(value) && value > 0; });
}

CLI::Validator zero_or_more() {
  return expects<double>("a finite number, 0 or more",
                         [](double value) { return std::isfinite(value) && value >= 0; });
}

CLI::Validator whole_in(std::int64_t low, std::int64_t high) {
  return expects<std::int64_t>(
      "a whole number from " + std::to_string(low) + " to " + std::to_string(high),
      [=](std::int64_t value) { return value >= low && value <= high; });
}

CLI::Validator whole_from(std::int64_t low) {
  return expects<std::int64_t>("a whole number, " + std::to_string(low) + " or more",
                               [=](std::int64_t value) { return value >= low; });
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  std::string list;
  for (std::size_t i = 0; i < choices.size(); ++i)
    list += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
  return {[=](std::string& text) {
            if (std::find(choices.begin(), choices.end(), text) != choices.end())
              return std::string();
            return "expected " + list + ", got '" + text + "'" + did_you_mean(text, choices);
          },
          ""};
}

std::string check_output_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored))
    return "there is no folder '" + folder.string() + "' to write '" + path + "' into";
  if (path.empty() || path.back() == '/' || fs::is_directory(path, ignored))
    return "expected the name of a file, got the folder '" + path + "'";
  if (fs::exists(path, ignored) && access(path.c_str(), W_OK) != 0)
    return cannot(path, std::strerror(errno));
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return {};  // a device
  const int error = try_to_write(path + ".probe" + std::to_string(getpid()));
  return error == 0 ? std::string() : cannot(path, std::strerror(error));
}

std::string check_input_path(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return "there is no file '" + path + "'";
  if (std::filesystem::is_directory(path, ignored)) return "'" + path + "' is a folder";
  if (access(path.c_str(), R_OK) != 0) return "cannot read '" + path + "': " + std::strerror(errno);
  return {};
}

}  // namespace thinwire::apps
