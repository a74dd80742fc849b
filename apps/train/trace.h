// trace.h: a timeline of a worker's threads, as a file for Perfetto and chrome://tracing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace thinwire::train {

class Trace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Tracks: the thread that computes, the thread of the exchange, and one for the
  // collectives of each bucket, because those overlap. Names must live as long as the trace.
  // Any thread may call these.
  void compute(const char* name, std::uint64_t step, Time begin, Time end);
  void stage(const char* name, std::uint64_t step, std::uint16_t bucket, Time begin, Time end);

  // Writes Chrome's trace event format, with times in microseconds. Throws an Error if it cannot.
  void write(const std::string& path, int rank) const;

 private:
  struct Event {
    const char* name;
    std::uint64_t step;
    int bucket;  // -1: none
    int track;
    Time begin, end;
  };
  void add(const Event& event);
  static void unfold(std::vector<Event>& events);

  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

}  // namespace thinwire::train
