// table.h: the result of one training, as a row for people and as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/exchange/exchange.h"

namespace digits {

struct Row {
  std::string scheme;
  double accuracy = 0;         // on the test images
  std::uint64_t steps = 0;     // taken in this run
  double seconds = 0;          // of all steps
  thinwire::Report report;     // of the whole run, warm-up included
  thinwire::Report at_half;    // at half time: the second half is free of warm-up
  std::uint64_t checks = 0;    // comparisons of the replicas; a failed one ends the program
  std::uint32_t checksum = 0;  // of the weights: equal if two runs ended with the same weights

  double per_step(double sum) const {
    return report.steps ? sum / static_cast<double>(report.steps) : 0;
  }
  double payload() const { return per_step(static_cast<double>(report.payload_bytes)); }
  double sent() const { return per_step(static_cast<double>(report.traffic.sent)); }
  double milliseconds(double sum) const { return per_step(1e3 * sum); }
  double final_ratio() const {
    thinwire::Report rest;
    rest.payload_bytes = report.payload_bytes - at_half.payload_bytes;
    rest.dense_bytes = report.dense_bytes - at_half.dense_bytes;
    return rest.ratio();
  }
};

// The times of encode, wait and decode are those of the exchange's own thread. The part that ran
// during backward is not in the total.
inline void print_head(const std::string& group, int workers, std::size_t parameters) {
  std::printf("%zu parameters, %d workers, %s\n\n", parameters, workers, group.c_str());
  std::printf("%-33s%9s%12s%8s%9s%12s%32s\n", "", "test", "payload", "ratio,", "ratio,",
              "sent/rank", "milliseconds per step");
  std::printf("%-33s%9s%12s%8s%9s%12s%8s%8s%8s%8s  %-10s%8s\n", "scheme", "accuracy", "bytes/step",
              "all", "2nd half", "bytes/step", "all", "encode", "wait", "decode", "replicas",
              "weights");
}

inline void print(const Row& row) {
  std::printf("%-33s%8.2f%%%12.0f%8.1f%9.1f%12.0f%8.2f%8.3f%8.2f%8.3f  %-10s%08x\n",
              row.scheme.c_str(), 100 * row.accuracy, row.payload(), row.report.ratio(),
              row.final_ratio(), row.sent(), row.milliseconds(row.seconds),
              row.milliseconds(row.report.encode_seconds),
              row.milliseconds(row.report.wait_seconds),
              row.milliseconds(row.report.decode_seconds), "identical", row.checksum);
  std::fflush(stdout);
}

// Compares the last scheme with the first.
inline void print_verdict(const std::vector<Row>& rows) {
  if (rows.size() < 2) return;
  const Row &first = rows.front(), &last = rows.back();
  const double points = 100 * (last.accuracy - first.accuracy);
  std::printf(
      "\n%s against %s: accuracy %+.2f points, 1/%.0f of the bytes (1/%.0f in the second half),",
      last.scheme.c_str(), first.scheme.c_str(), points, first.payload() / last.payload(),
      last.final_ratio() / first.final_ratio());
  std::printf(" steps %.1f times as fast.\n", first.seconds / last.seconds);
}

inline nlohmann::json to_json(const Row& row) {
  return {{"scheme", row.scheme},
          {"accuracy", row.accuracy},
          {"steps", row.steps},
          {"skipped", row.report.skipped},
          {"seconds_per_step", row.per_step(row.seconds)},
          {"encode_seconds_per_step", row.per_step(row.report.encode_seconds)},
          {"wait_seconds_per_step", row.per_step(row.report.wait_seconds)},
          {"decode_seconds_per_step", row.per_step(row.report.decode_seconds)},
          {"payload_bytes_per_step", row.payload()},
          {"ratio", row.report.ratio()},
          {"ratio_second_half", row.final_ratio()},
          {"sent_bytes_per_rank_and_step", row.sent()},
          {"replicas_identical", true},
          {"replica_checks", row.checks},
          {"weights_crc32c", row.checksum}};
}

inline void write_json(const std::string& path, const std::string& group, int workers,
                       const std::vector<Row>& rows) {
  nlohmann::json all = {{"group", group}, {"workers", workers}};
  for (const Row& row : rows) all["rows"].push_back(to_json(row));
  std::ofstream file(path);
  file << all.dump(2) << "\n";
  file.close();
  if (!file) thinwire::fail("cannot write '", path, "'");
}

}  // namespace digits
