// bench_schemes.cc: `thinwire bench schemes`: compares every scheme's encoding and decoding of one
// bucket with a plain loop that moves the bytes which the scheme cannot avoid moving.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>

#include "apps/flags.h"
#include "apps/measure.h"
#include "apps/synthetic.h"
#include "apps/verb.h"
#include "bench/stream.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"

namespace thinwire::apps {
namespace bench_schemes_verb {
namespace {

constexpr std::uint64_t seed = 1;
constexpr std::size_t layer_rows = 1000, layer_columns = 1000;
constexpr std::size_t shift = 16, shifts = 64;  // in floats: a cache line, and the number of shifts
constexpr int settling = 20;                    // steps until thresholds and residuals settle

struct Settings {
  std::vector<std::size_t> elements = {1'000'000, 10'000'000};
  std::size_t ranks = 4;
  double seconds = 0.5;
  std::string only;
  std::string schemes;
  std::string json;
};

// Layers of a thousand by a thousand, and one shapeless layer for the remaining elements.
Bucket make_bucket(std::size_t elements) {
  Bucket bucket;
  for (std::size_t at = 0; at < elements;) {
    const bool whole = elements - at >= layer_rows * layer_columns;
    Parameter layer{"layer" + std::to_string(bucket.parameters.size()), at, elements - at, {}};
    if (whole) {
      layer.count = layer_rows * layer_columns;
      layer.shape = {layer_rows, layer_columns};
    }
    at += layer.count;
    bucket.parameters.push_back(std::move(layer));
  }
  return bucket;
}

// A compressor, its gradients and its messages. The other ranks' bytes are copies of our own.
class Run {
 public:
  Run(const Config& config, std::size_t elements, std::size_t ranks)
      : ranks_(ranks),
        compressor_(make_compressor(config, make_bucket(elements), {0, static_cast<int>(ranks)})),
        pool_(elements + shift * shifts),
        average_(elements),
        sizes_(ranks) {
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = heavy_tailed(seed, i);
  }

  // All rounds up to the last encoding, including the work between them.
  void encode() {
    const int last = compressor_->rounds() - 1;
    ++step_;
    bytes_ = 0;
    for (int round = 0; round <= last; ++round) {
      encode_round(round);
      if (round < last) decode_round(round);
    }
  }

  void decode() { decode_round(compressor_->rounds() - 1); }

  // The bytes that one rank sent in the last step, and the bytes that the last round must read and
  // write to decode.
  std::size_t bytes() const { return bytes_; }
  std::size_t decoded_bytes() const { return inbox_.data.size() + average_.size() * sizeof(float); }

 private:
  std::span<float> gradient() {
    return std::span(pool_).subspan(step_ % shifts * shift, average_.size());
  }

  void encode_round(int round) {
    const Leg leg = compressor_->leg(step_, round);
    const bool gather = leg.reduction == Reduction::gather;
    Bytes out = std::as_writable_bytes(gradient());
    if (!leg.in_place) {
      slots_.resize(leg.bytes * (gather ? ranks_ : 1));
      out = Bytes(slots_).first(leg.bytes);
    }
    const std::size_t sent = compressor_->encode(turn(round), gradient(), out);
    bytes_ += sent;
    std::fill(sizes_.begin(), sizes_.end(), sent);
    inbox_ = {leg.in_place ? ConstBytes(out) : ConstBytes(slots_), leg.bytes, sizes_};
    if (!gather) inbox_.sizes = {};
    spread_ = gather ? leg.bytes : 0;
  }

  void decode_round(int round) {
    // The copies for the other ranks are made once, because not every timed decoding
    // follows an encoding.
    for (std::size_t rank = 1; spread_ > 0 && rank < ranks_; ++rank)
      std::copy_n(slots_.data(), sizes_[0], slots_.data() + rank * spread_);
    spread_ = 0;
    const Status status = compressor_->decode(turn(round), inbox_, std::span(average_));
    if (!status.ok()) fail("bench schemes: decoding failed: ", status.what);
  }

  Turn turn(int round) const { return {step_, round, {}, 0}; }

  std::size_t ranks_;
  std::unique_ptr<Compressor> compressor_;
  std::vector<float> pool_, average_;
  std::vector<std::byte> slots_;
  std::vector<std::size_t> sizes_;
  Inbox inbox_;
  std::size_t spread_ = 0;  // bytes of a slot that are still to be copied
  std::size_t bytes_ = 0;
  std::uint64_t step_ = 0;
};

// Moves `bytes` over `elements` floats: reads an array of that many floats as far as the bytes go,
// and moves the rest by a loop that reads three arrays and writes two of them, 20 bytes per
// element. No line is fetched only to be overwritten, and the loop touches about as much memory as
// the work does.
class Floor {
 public:
  Floor(double bytes, std::size_t elements)
      : read_(std::min(elements, static_cast<std::size_t>(bytes / 4)), 1.0f),
        g_(static_cast<std::size_t>(bytes - 4.0 * static_cast<double>(read_.size())) / 20, 1.0f),
        u_(g_),
        v_(g_) {}

  void run() {
    for_shares(read_.size(), [this](std::size_t first, std::size_t count) {
      (void)stream_read(read_.data() + first, count);
    });
    for_shares(g_.size(), [this](std::size_t first, std::size_t count) {
      stream_read3_write2(g_.data() + first, u_.data() + first, v_.data() + first, count);
    });
  }

 private:
  std::vector<float> read_, g_, u_, v_;
};

Row run_row(const std::string& name, const std::string& part, std::size_t elements, double bytes,
            const std::function<void()>& work, double seconds) {
  progress(name + " " + part + ", " + std::to_string(elements) + " elements");
  Floor floor(bytes, elements);
  const Timing timing = measure(work, [&] { floor.run(); }, {seconds, settling});
  const auto count = static_cast<double>(elements);
  Row row = {{"name", name}, {"part", part}, {"elements", elements}, {"threads", threads()}};
  add_timing(row, timing);
  row["ns_per_element"] = timing.seconds * 1e9 / count;
  row["floor_bytes_per_element"] = bytes / count;
  return row;
}

void run_scheme(const Config& config, std::size_t elements, const Settings& settings, Rows& rows) {
  Run run(config, elements, settings.ranks);
  const double must_move = find_scheme(config.scheme).traffic * static_cast<double>(elements);
  run.encode();
  if (must_move > 0) {  // dense has nothing to encode
    Row row = run_row(
        config.str(), "encode", elements, must_move, [&] { run.encode(); }, settings.seconds);
    row["bits_per_element"] =
        8.0 * static_cast<double>(run.bytes()) / static_cast<double>(elements);
    rows.push_back(std::move(row));
  }
  run.decode();
  Row row = run_row(
      config.str(), "decode", elements, static_cast<double>(run.decoded_bytes()),
      [&] { run.decode(); }, settings.seconds);
  row["ranks"] = settings.ranks;
  rows.push_back(std::move(row));
}

std::vector<Config> chosen(const Settings& settings) {
  if (!settings.schemes.empty()) return parse_schemes(settings.schemes);
  std::vector<Config> configs;
  std::string known;
  for (const Scheme* scheme : schemes()) {
    if (scheme->name.find(settings.only) != std::string::npos)
      configs.push_back({scheme->name, {}});
    known += (known.empty() ? "" : ", ") + scheme->name;
  }
  if (configs.empty())
    throw BadInput("--only: no scheme named '" + settings.only + "'; known: " + known);
  return configs;
}

const std::vector<Column> columns = {
    {"name", "scheme", Show::text},
    {"part", "part", Show::text},
    {"elements", "elements", Show::count},
    {"ranks", "ranks", Show::count},
    {"seconds", "time", Show::seconds},
    {"floor_seconds", "floor", Show::seconds},
    {"ratio", "ratio", Show::number},
    {"ratio_low", "25 %", Show::number},
    {"ratio_high", "75 %", Show::number},
    {"ns_per_element", "ns/element", Show::number},
    {"floor_bytes_per_element", "floor moves B/element", Show::number},
    {"bits_per_element", "sent bits/element", Show::number},
};

void run(const Settings& settings) {
  if (settings.ranks > 127) throw BadInput("--ranks: expected 1 to 127");
  const std::vector<Config> configs = chosen(settings);
  Rows rows;
  for (const Config& config : configs) {
    for (const std::size_t elements : settings.elements)
      run_scheme(config, elements, settings, rows);
  }
  progress("");
  report(columns, rows, settings.json);
}

}  // namespace
}  // namespace bench_schemes_verb

void add_bench_schemes(CLI::App& parent) {
  using namespace bench_schemes_verb;
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb = add_verb(
      parent, "schemes",
      "Measure how every scheme encodes and decodes one bucket, against a plain loop that moves\n"
      "the bytes which the scheme cannot avoid moving, in the same run",
      "thinwire bench schemes --elements 1e7 --only qsgd", settings->json);
  add_counts(*verb, "--elements", settings->elements, "Sizes of the bucket");
  verb->add_option("--ranks", settings->ranks, "Payloads that a decoder adds, 1 to 127")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_in(1, 127));
  verb->add_option("--seconds", settings->seconds, "Seconds to measure one row")
      ->capture_default_str()
      ->type_name("S")
      ->check(number_in(0, 3600));
  verb->add_option("--only", settings->only, "Measure only schemes whose name contains this")
      ->type_name("NAME");
  verb->add_option("--schemes", settings->schemes, "Schemes to measure, with options; default all")
      ->type_name("LIST");
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
