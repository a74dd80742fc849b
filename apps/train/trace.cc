// trace.cc: writes events in Chrome's trace event format.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/trace.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int compute_track = 1;
constexpr int exchange_track = 2;
constexpr int first_bucket_track = 10;

constexpr int most_buckets = 1 << 16;  // the range of bucket numbers

// Overlapping collectives of one bucket, such as messages of a delayed average, get
// separate tracks.
int lane_track(int bucket, int lane) { return first_bucket_track + lane * most_buckets + bucket; }

std::string track_name(int track) {
  if (track == compute_track) return "compute";
  if (track == exchange_track) return "encode, decode";
  const int lane = (track - first_bucket_track) / most_buckets;
  return "exchange of bucket " + std::to_string((track - first_bucket_track) % most_buckets) +
         (lane > 0 ? ", message " + std::to_string(lane + 1) + " in flight" : "");
}

double microseconds(Trace::Time from, Trace::Time to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

}  // namespace

void Trace::compute(const char* name, std::uint64_t step, Time begin, Time end) {
  add({name, step, -1, compute_track, begin, end});
}

void Trace::stage(const char* name, std::uint64_t step, std::uint16_t bucket, Time begin,
                  Time end) {
  const bool collective = std::strcmp(name, "exchange") == 0;
  add({name, step, bucket, collective ? lane_track(bucket, 0) : exchange_track, begin, end});
}

// Moves every collective to its bucket's first track that is free when it begins.
void Trace::unfold(std::vector<Event>& events) {
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.begin < b.begin; });
  std::map<int, Time> busy_until;
  for (Event& event : events) {
    if (event.track < first_bucket_track) continue;
    int lane = 0;
    while (busy_until[lane_track(event.bucket, lane)] > event.begin) ++lane;
    event.track = lane_track(event.bucket, lane);
    busy_until[event.track] = event.end;
  }
}

void Trace::add(const Event& event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

void Trace::write(const std::string& path, int rank) const {
  const std::lock_guard lock(mutex_);
  std::vector<Event> events = events_;
  unfold(events);
  Time zero = Time::max();
  std::set<int> tracks;
  for (const Event& event : events) {
    zero = std::min(zero, event.begin);
    tracks.insert(event.track);
  }
  Json all = Json::array();
  const auto name = [&](const char* kind, int track, const std::string& text) {
    all.push_back(
        {{"ph", "M"}, {"pid", rank}, {"tid", track}, {"name", kind}, {"args", {{"name", text}}}});
  };
  name("process_name", 0, "rank " + std::to_string(rank));
  for (const int track : tracks) name("thread_name", track, track_name(track));
  for (const Event& event : events) {
    Json arguments = {{"step", event.step}};
    if (event.bucket >= 0) arguments["bucket"] = event.bucket;
    all.push_back({{"ph", "X"},
                   {"pid", rank},
                   {"tid", event.track},
                   {"name", event.name},
                   {"ts", microseconds(zero, event.begin)},
                   {"dur", microseconds(event.begin, event.end)},
                   {"args", arguments}});
  }
  std::ofstream file(path);
  file << Json{{"traceEvents", all}, {"displayTimeUnit", "ms"}}.dump() << '\n';
  file.close();
  if (!file) fail("cannot write '", path, "'");
}

}  // namespace thinwire::train
