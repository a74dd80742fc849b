// inspect_model.cc: flags and tables of `thinwire inspect --model`.
// SPDX-License-Identifier: Apache-2.0
#include "apps/inspect_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <numeric>

#include "apps/flags.h"
#include "apps/verb.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace {

constexpr std::array<const char*, top_parts.size()> top_keys = {"top_0.1", "top_1", "top_10"};

const std::vector<Column> layer_columns = {
    {"layer", "layer", Show::text},         {"shape", "shape", Show::text},
    {"elements", "elements", Show::count},  {"energy", "energy", Show::number},
    {"top_0.1", "top 0.1 %", Show::number}, {"top_1", "top 1 %", Show::number},
    {"top_10", "top 10 %", Show::number},
};

const std::vector<Column> size_columns = {
    {"scheme", "scheme", Show::text},
    {"bytes", "bytes/step", Show::bytes},
    {"ratio", "ratio", Show::number},
    {"bits_per_element", "bits/element", Show::number},
    {"sent", "sent", Show::count},
    {"density", "density", Show::number},
    {"bits_per_sent", "bits/sent", Show::number},
    {"error", "error", Show::number},
    {"exchange_seconds", "exchange", Show::seconds},
    {"gradient_seconds", "whole gradient", Show::seconds},
};

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(size);
  }
  return text;
}

Row energy_row(const std::string& name, const std::string& shape, const Energy& energy,
               const Energy& whole) {
  Row row = {{"layer", name},
             {"shape", shape},
             {"elements", energy.elements},
             {"energy", energy.share_of(whole)}};
  for (std::size_t i = 0; i < top_parts.size(); ++i) row[top_keys[i]] = energy.top[i];
  return row;
}

// The mean over the second half of the steps. By then a carried threshold has settled.
double mean_of_end(const std::vector<std::size_t>& by_step) {
  const std::size_t count = (by_step.size() + 1) / 2;
  const double sum =
      std::accumulate(by_step.end() - static_cast<std::ptrdiff_t>(count), by_step.end(), 0.0);
  return sum / static_cast<double>(count);
}

Link link_of(const ModelSettings& settings) {
  try {
    return Link::parse(settings.link);
  } catch (const Error& error) {
    throw BadInput(std::string("--link: ") + error.what());
  }
}

Candidate candidate_of(const WireSize& size) {
  Candidate candidate = size.candidate;
  candidate.scheme = size.scheme;
  candidate.bytes = mean_of_end(size.bytes);
  return candidate;
}

void add_times(Row& row, const Candidate& candidate, const Link& link, int workers) {
  row["error"] = std::sqrt(1 - candidate.kept);
  row["exchange_seconds"] = exchange_seconds(candidate, link, workers);
  if (candidate.loses) return;
  row["gradient_seconds"] = gradient_seconds(candidate, link, workers);
}

Row size_row(const WireSize& size, std::size_t elements) {
  const double bytes = mean_of_end(size.bytes), sent = mean_of_end(size.sent);
  const auto count = static_cast<double>(elements);
  Row row = {{"scheme", size.scheme},
             {"bytes", bytes},
             {"ratio", 4 * count / bytes},
             {"bits_per_element", 8 * bytes / count},
             {"sent", std::llround(sent)},
             {"density", sent / count},
             {"bits_per_sent", sent > 0 ? 8 * bytes / sent : 0}};
  row["bytes_by_step"] = size.bytes;
  row["sent_by_step"] = size.sent;
  return row;
}

Rows layer_rows(const Findings& findings) {
  Rows rows;
  for (const Layer& layer : findings.layers) {
    rows.push_back(energy_row(layer.name, text_of(layer.shape), layer.energy, findings.whole));
  }
  return rows;
}

Rows shown_rows(const Findings& findings, const Rows& all) {
  Rows rows;
  for (const std::size_t i : largest(findings.layers, most_layers)) rows.push_back(all[i]);
  const std::size_t others = all.size() - rows.size();
  if (others > 0) {
    const std::string name = std::to_string(others) + " smaller, as one";
    rows.push_back(energy_row(name, "", findings.rest, findings.whole));
  }
  rows.push_back(energy_row("all, as one", "", findings.whole, findings.whole));
  return rows;
}

void print_head(const ModelSettings& settings, const Findings& findings) {
  std::cout << settings.model << " on " << settings.data << ": " << findings.whole.elements
            << " parameters in " << findings.buckets
            << (findings.buckets == 1 ? " bucket" : " buckets") << ", one worker, "
            << settings.steps << (settings.steps == 1 ? " step of " : " steps of ")
            << settings.batch << " examples, last loss " << findings.loss << "\n\n";
}

}  // namespace

void describe(CLI::App& verb, ModelSettings& s) {
  CLI::Option* model =
      verb.add_option("--model", s.model, "Network whose gradients to measure")->type_name("NAME");
  std::vector<CLI::Option*> others = {
      verb.add_option("--data", s.data,
                      "Data to learn from, see thinwire train --help; default: noise of\n"
                      "the size that the model was made for, or data that comes with it")
          ->type_name("KIND[:WHERE]"),
      verb.add_option("--link", s.link, "Link for the verdict, by bandwidth and latency")
          ->type_name("1gbit,1ms"),
      verb.add_option("--workers", s.workers, "Workers for the verdict")
          ->type_name("N")
          ->check(whole_in(2, 65536)),
      verb.add_option("--schemes", s.schemes, "Schemes to measure; default all")
          ->type_name("A,B:KEY=VALUE,..."),
      verb.add_option("--steps", s.steps,
                      "Steps of training; default 20, or 4 for a large model without\n"
                      "--data")
          ->type_name("N")
          ->check(whole_in(1, std::int64_t{1} << 32)),
      verb.add_option("--batch", s.batch, "Examples per step; default 32, or 4 in that case")
          ->type_name("N")
          ->check(whole_in(1, 1 << 20)),
      verb.add_option("--sequence", s.sequence, "Tokens per example of a language model")
          ->type_name("N")
          ->check(whole_in(1, 1 << 20)),
      verb.add_option("--seed", s.seed, "Seed of weights, batches and dropout")
          ->type_name("N")
          ->check(whole_from(0)),
      verb.add_option("--lr", s.rate, "Learning rate")->type_name("X")->check(above_zero()),
      verb.add_option("--bucket-mb", s.bucket_mb, "Megabytes of gradients per bucket")
          ->type_name("X")
          ->check(number_in(0.001, 4096)),
      verb.add_option("--threads", s.threads, "Threads to compute with")
          ->type_name("N")
          ->check(whole_in(1, 1024))};
  for (CLI::Option* option : others) {
    option->needs(model);
    const std::string name = option->get_name();
    if (name == "--link" || name == "--workers" || name == "--seed" || name == "--lr" ||
        name == "--bucket-mb" || name == "--sequence")
      option->capture_default_str();
  }
}

std::vector<Config> schemes_of(const ModelSettings& settings) {
  (void)link_of(settings);  // rejects a bad link before any work
  if (!settings.schemes.empty()) return parse_schemes(settings.schemes);
  std::vector<Config> all;
  for (const Scheme* scheme : schemes()) all.push_back(parse_scheme(scheme->name));
  return all;
}

std::vector<std::size_t> largest(const std::vector<Layer>& layers, std::size_t count) {
  std::vector<std::size_t> order(layers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return layers[a].energy.elements > layers[b].energy.elements;
  });
  order.resize(std::min(count, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

void report(const Findings& findings) {
  const ModelSettings& settings = findings.used;
  const Link link = link_of(settings);
  const Rows layers = layer_rows(findings);
  Rows sizes;
  std::vector<Candidate> candidates;
  for (const WireSize& size : findings.sizes) {
    candidates.push_back(candidate_of(size));
    sizes.push_back(size_row(size, findings.whole.elements));
    add_times(sizes.back(), candidates.back(), link, settings.workers);
  }
  const Verdict verdict =
      judge(candidates, static_cast<double>(findings.whole.elements), link, settings.workers);
  print_head(settings, findings);
  std::cout
      << "Energy: the layer's share of the model's energy, and the share in its largest elements\n";
  print_table(std::cout, layer_columns, shown_rows(findings, layers));
  std::cout
      << "\nWire: what one worker's encoders write per step, headers included. Error: the part of\n"
         "the first gradient's norm that its message lacks, after the best scaling.\n"
         "Exchange: one step over "
      << link.str() << " with " << settings.workers
      << " workers, without overlap; an estimate from bytes,\nlatency, and encoding and "
         "decoding on this machine. Whole gradient: the time until a\nwhole gradient's energy "
         "has been sent; empty if a scheme loses what it does not send.\n\n";
  print_table(std::cout, size_columns, sizes);
  std::cout << '\n' << verdict.text << '\n';
  if (settings.json.empty()) return;
  Row about = about_machine();
  about.update({{"model", settings.model},
                {"data", settings.data},
                {"steps", settings.steps},
                {"batch", settings.batch},
                {"elements", findings.whole.elements},
                {"buckets", findings.buckets},
                {"loss", findings.loss},
                {"link", link.str()},
                {"workers", settings.workers},
                {"take", verdict.take},
                {"verdict", verdict.text}});
  about["layers"] = layers;
  about["whole"] = energy_row("all, as one", "", findings.whole, findings.whole);
  write_json(settings.json, about, sizes);
}

}  // namespace thinwire::apps
