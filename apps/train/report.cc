// report.cc: prints a training's numbers as lines and JSON.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/report.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "apps/train/device.h"
#include "apps/verb.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

using apps::bytes_text;
using apps::Row;
using apps::seconds_text;

template <typename... Values>
std::string printed(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

double per(double sum, double count) { return count > 0 ? sum / count : 0; }

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string cell(const Row& row, const char* key, const char* format) {
  const auto found = row.find(key);
  if (found == row.end()) return "";
  return found->is_number() ? printed(format, found->get<double>()) : "nan";
}

std::string score_cell(const Row& row, const std::string& measure) {
  return cell(row, measure.c_str(), measure == "perplexity" ? "%.2f" : "%.4f");
}

std::string time_cell(const Row& row, const char* key) {
  return row.contains(key) ? seconds_text(row.at(key).get<double>()) : "-";
}

std::string ratio_text(double ratio) { return printed(ratio < 100 ? "%.1fx" : "%.0fx", ratio); }

std::string delay_text(const Settings& settings) {
  if (!settings.delayed) return "";
  const DelayOptions& delay = *settings.delayed;
  return "delayed averaging: messages of " + std::to_string(delay.local_steps) +
         (delay.local_steps == 1 ? " step, " : " steps, ") + delay.delay_str() +
         " steps in flight, correction " + delay.correction_str() + "\n";
}

std::string virtual_text(const Settings& settings) {
  if (settings.virtual_workers == 0) return "";
  return "the workers take turns in this process: " +
         (settings.emulated
              ? "nothing waits, and times over " + settings.emulated->str() + " are estimated\n"
              : "their times are not those of a step\n");
}

std::string seat_text(const Settings& settings) {
  if (!settings.cuda) return "";
  const std::string why = why_on_host(settings);
  return why.empty() ? "compression and update on the GPU\n"
                     : "compression and update on the CPU: " + why + "\n";
}

// The columns of times: heading and key.
std::vector<std::pair<const char*, const char*>> times_of(const Settings& settings) {
  if (settings.virtual_workers == 0) {
    return {{"step", "seconds_per_step"},
            {"compute", "compute_seconds"},
            {"encode", "encode_seconds"},
            {"wait", "wait_seconds"},
            {"decode", "decode_seconds"}};
  }
  std::vector<std::pair<const char*, const char*>> times = {{"process", "process_seconds_per_step"},
                                                            {"compute", "compute_seconds"},
                                                            {"encode", "encode_seconds"},
                                                            {"decode", "decode_seconds"}};
  if (estimates(settings)) {
    times.emplace_back("est. link", "estimated_link_seconds");
    times.emplace_back("est. step", "estimated_seconds_per_step");
  }
  return times;
}

// A step's time, for the last line.
std::string step_text(const Row& final) {
  const auto text = [&](const char* key) { return seconds_text(final.at(key).get<double>()); };
  if (final.contains("seconds_per_step")) return text("seconds_per_step") + " per step";
  std::string process = text("process_seconds_per_step") + " per step of all workers";
  if (!final.contains("estimated_seconds_per_step")) return process;
  return process + ", estimated " + text("estimated_seconds_per_step") + " over the link";
}

void check_output() {
  if (!std::cout) fail("cannot write to standard output; did its reader exit?");
}

void print_cells(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& text : cells) line += printed("%11s", text.c_str());
  std::cout << line << std::endl;
  check_output();
}

}  // namespace

std::vector<double> Tally::values() const {
  return {steps,  skipped, loss,   payload_bytes, dense_bytes, sent_bytes, seconds, compute,
          encode, wait,    decode, exposed,       optimizer,   estimated,  link};
}

Tally Tally::from(const std::vector<double>& v, double scale) {
  return {v[0] * scale,  v[1] * scale,  v[2] * scale,  v[3] * scale,  v[4] * scale,
          v[5] * scale,  v[6] * scale,  v[7] * scale,  v[8] * scale,  v[9] * scale,
          v[10] * scale, v[11] * scale, v[12] * scale, v[13] * scale, v[14] * scale};
}

Tally Tally::minus(const Tally& earlier) const {
  std::vector<double> mine = values();
  const std::vector<double> theirs = earlier.values();
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] -= theirs[i];
  return from(mine, 1);
}

bool estimates(const Settings& settings) {
  return settings.virtual_workers > 0 && settings.emulated;
}

Row row_of(const Settings& settings, const Tally& tally) {
  Row row;
  const auto add = [&](const char* key, double sum) { row[key] = per(sum, tally.steps); };
  const bool processes = settings.virtual_workers == 0;
  add("loss", tally.loss);
  add("bytes_per_step", tally.payload_bytes);
  add("sent_bytes_per_step", tally.sent_bytes);
  row["ratio"] = per(tally.dense_bytes, tally.payload_bytes);
  add(processes ? "seconds_per_step" : "process_seconds_per_step", tally.seconds);
  if (estimates(settings)) {
    add("estimated_seconds_per_step", tally.estimated);
    add("estimated_link_seconds", tally.link);
  }
  add("compute_seconds", tally.compute);
  add("encode_seconds", tally.encode);
  if (processes) add("wait_seconds", tally.wait);
  add("decode_seconds", tally.decode);
  if (processes) add("exposed_seconds", tally.exposed);
  add("optimizer_seconds", tally.optimizer);
  row["skipped"] = std::llround(tally.skipped);
  return row;
}

Reporter::Reporter(const Settings& settings, bool speaks, Domain domain)
    : settings_(settings), speaks_(speaks), measure_(measure_of(domain)) {}

void Reporter::head(const std::string& engine, int world, std::size_t parameters,
                    std::size_t buckets, std::uint64_t steps) {
  if (!speaks_) return;
  std::cout << settings_.model << " on " << settings_.data << ": " << parameters
            << " parameters in " << buckets << (buckets == 1 ? " bucket, " : " buckets, ") << world
            << (world == 1 ? " worker, " : " workers, ") << engine
            << (settings_.cuda ? ", cuda" : "") << "\n"
            << "scheme " << settings_.config.str() << ", " << steps << " steps of "
            << static_cast<std::uint64_t>(settings_.batch) * settings_.accumulate
            << " examples per worker" << (settings_.bf16 ? ", bf16" : "") << "\n"
            << delay_text(settings_) << virtual_text(settings_) << seat_text(settings_) << "\n"
            << std::flush;
}

void Reporter::bar(std::uint64_t step, std::uint64_t steps, double loss, const Tally& so_far) {
  if (!speaks_ || (now() - drawn_ < 0.1 && step != steps)) return;
  drawn_ = now();
  constexpr std::size_t width = 24;
  const auto filled = static_cast<std::size_t>(width * step / steps);
  apps::progress("[" + std::string(filled, '#') + std::string(width - filled, '.') + "] " +
                 std::to_string(step) + "/" + std::to_string(steps) + "  loss " +
                 printed("%.4f", loss) + "  " +
                 bytes_text(per(so_far.payload_bytes, so_far.steps)) + "  " +
                 ratio_text(per(so_far.dense_bytes, so_far.payload_bytes)) + "  " +
                 seconds_text(per(so_far.seconds, so_far.steps)) + "/step");
}

void Reporter::row(Row row) {
  if (!speaks_) return;
  apps::progress("");
  const std::string score = score_cell(row, measure_);
  std::vector<std::string> heads = {"step", "epoch", "loss", measure_, "bytes/step", "ratio"},
                           cells = {std::to_string(row.at("step").get<std::uint64_t>()),
                                    cell(row, "epoch", "%.2f"),
                                    cell(row, "loss", "%.4f"),
                                    score,
                                    bytes_text(row.at("bytes_per_step").get<double>()),
                                    ratio_text(row.at("ratio").get<double>())};
  for (const auto& [head, key] : times_of(settings_)) {
    heads.emplace_back(head);
    cells.push_back(time_cell(row, key));
  }
  heads.emplace_back("skipped");
  cells.push_back(std::to_string(row.at("skipped").get<std::uint64_t>()));
  if (!headed_) print_cells(heads);
  headed_ = true;
  print_cells(cells);
  rows_.push_back(std::move(row));
}

void Reporter::end(const Row& final) {
  if (!speaks_) return;
  apps::progress("");
  const std::string score = std::string(measure_) + " " + score_cell(final, measure_);
  std::cout << "\n"
            << (final.contains(measure_) ? score + " on the test set" : "not evaluated")
            << " after " << final.at("steps") << " steps, "
            << bytes_text(final.at("bytes_per_step").get<double>()) << " per step and worker ("
            << ratio_text(final.at("ratio").get<double>()) << "), " << step_text(final) << ", "
            << final.at("skipped") << " skipped, replicas identical, weights "
            << final.at("checksum").get<std::string>() << std::endl;
  check_output();
}

void Reporter::write(const Row& final, const Row& about) const {
  if (!speaks_ || settings_.json.empty()) return;
  Row document = about;
  document["final"] = final;
  document["rows"] = rows_;
  std::ofstream file(settings_.json);
  file << document.dump(1) << '\n';
  file.close();
  if (!file) fail("cannot write '", settings_.json, "'");
}

}  // namespace thinwire::train
