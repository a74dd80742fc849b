// text.h: builds text from parts, and reads a number from text. It uses neither streams nor strtod:
// both depend on the program's locale ("0,5"), and streams crash on numbers inside some Python
// processes, where another library has loaded a second C++ runtime.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

namespace thinwire {

template <typename Part>
void append(std::string& text, const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else {
    static_assert(std::is_arithmetic_v<Part>, "text is made of strings and numbers");
    std::array<char, 32> room;
    char* end = nullptr;
    if constexpr (std::is_floating_point_v<Part>) {
      constexpr int digits = 6;
      end = std::to_chars(room.begin(), room.end(), part, std::chars_format::general, digits).ptr;
    } else {
      end = std::to_chars(room.begin(), room.end(), part + 0).ptr;  // + 0: a bool is a number too
    }
    text.append(room.data(), end);
  }
}

template <typename... Parts>
std::string text_of(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

// The finite number that the whole text spells, or NaN.
inline double number_in(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  const bool sound = read.ec == std::errc() && read.ptr == end && std::isfinite(number);
  return sound ? number : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace thinwire
