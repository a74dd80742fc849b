// bench_wire.cc: `thinwire bench wire`: compares the bits that the coders spend with the entropy of
// the support, and their time with a copy of the frame.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/flags.h"
#include "apps/measure.h"
#include "apps/synthetic.h"
#include "apps/verb.h"
#include "thinwire/wire/frame.h"

namespace thinwire::apps {
namespace bench_wire_verb {
namespace {

constexpr std::uint64_t seed = 7;
constexpr std::string_view choice_names[] = {"smallest", "golomb", "elias_fano", "gap"};

struct Settings {
  std::vector<std::size_t> elements = {10'000'000};
  std::vector<double> densities = {1e-4, 1e-3, 1e-2, 1e-1};
  std::string support;
  double seconds = 0.1;
  std::string json;
};

// The input of a coder: indices of a bucket, and a value for each.
struct Input {
  std::string source;  // "uniform" or the file's name
  std::uint32_t elements = 0;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;

  Row row(const std::string& name) const {
    const auto count = static_cast<double>(indices.size());
    return {{"name", name},
            {"source", source},
            {"elements", elements},
            {"density", count / static_cast<double>(elements)},
            {"survivors", indices.size()}};
  }

  // No coder of arbitrary supports can average fewer bits per index: log2 C(n, k) / k.
  double bound_bits() const {
    const auto n = static_cast<double>(elements), k = static_cast<double>(indices.size());
    const double nats = std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
    return nats / std::log(2.0) / k;
  }
};

Input uniform_input(std::size_t elements, double density) {
  const auto n = static_cast<std::uint32_t>(elements);
  const auto k = static_cast<std::size_t>(std::llround(density * static_cast<double>(n)));
  Input input{"uniform", n, uniform_support(n, std::max<std::size_t>(k, 1), seed), {}};
  input.values = survivor_values(input.indices.size(), seed + 1);
  return input;
}

template <typename T>
std::vector<T> read_array(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw BadInput("cannot read '" + path + "'");
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.size() % sizeof(T) != 0) {
    throw BadInput("'" + path + "': expected a multiple of 4 bytes, got " +
                   std::to_string(bytes.size()));
  }
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// What is wrong with the words n, k, indices of a support file; empty if nothing is.
std::string fault_of(const std::vector<std::uint32_t>& words) {
  if (words.size() < 3) return "expected elements, survivors and at least one index";
  if (words.size() - 2 != words[1]) {
    return "expected " + std::to_string(words[1]) + " indices, got " +
           std::to_string(words.size() - 2);
  }
  for (std::size_t i = 2; i < words.size(); ++i) {
    if (words[i] >= words[0] || (i > 2 && words[i] <= words[i - 1])) {
      return "expected ascending indices below " + std::to_string(words[0]) + ", got " +
             std::to_string(words[i]) + " at place " + std::to_string(i - 2);
    }
  }
  return "";
}

// A real support has its real values beside it, in the file with the same stem.
std::vector<float> values_beside(const std::string& path, std::size_t count) {
  const std::string twin = std::filesystem::path(path).replace_extension(".f32").string();
  if (twin == path || !std::filesystem::exists(twin)) return survivor_values(count, seed + 1);
  std::vector<float> values = read_array<float>(twin);
  const bool sound = std::all_of(values.begin(), values.end(),
                                 [](float value) { return std::isfinite(value) && value != 0; });
  if (values.size() != count || !sound) {
    throw BadInput("'" + twin + "': expected " + std::to_string(count) +
                   " finite, non-zero values, got " + std::to_string(values.size()));
  }
  return values;
}

Input file_input(const std::string& path) {
  std::vector<std::uint32_t> words = read_array<std::uint32_t>(path);
  const std::string fault = fault_of(words);
  if (!fault.empty()) throw BadInput("'" + path + "' is not a support dump: " + fault);
  Input input{std::filesystem::path(path).filename().string(), words[0], {}, {}};
  input.indices.assign(words.begin() + 2, words.end());
  input.values = values_beside(path, input.indices.size());
  return input;
}

// One way of coding an input, with its buffers.
struct Coding {
  Coding(const Input& from, IndexChoice indices, ValueCoder coder)
      : input(from), choice(indices), values(from.values) {
    header.values = coder;
    header.elements = input.elements;
    header.chunk_log2 = chunk_log2_for(header.elements, input.indices.size());
    frame.resize(sparse_frame_bound(header, input.indices.size()));
    copy.resize(frame.size());
    encode();
    decode();
    if (back.indices != input.indices)
      throw std::runtime_error("bench wire: decoded indices are wrong");
  }

  // Values that were rounded once round to themselves, so repeats need no fresh ones.
  void encode() { bytes = encode_sparse(header, input.indices, values, choice, frame); }

  void decode() {
    FrameHeader read;
    std::size_t used = 0;
    const Status status = decode_sparse(coded(), values.size(), read, back, used);
    if (!status.ok()) throw std::runtime_error(std::string("bench wire: ") + status.what);
  }

  void copy_frame() { std::memcpy(copy.data(), frame.data(), bytes); }
  ConstBytes coded() const { return ConstBytes(frame).first(bytes); }

  const Input& input;
  IndexChoice choice;
  FrameHeader header;
  std::vector<float> values;
  std::vector<std::byte> frame, copy;
  std::size_t bytes = 0;
  Sparse back;
};

double bits_each(std::size_t bytes, const Input& input) {
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(input.indices.size());
}

// Everything but the values and the frame's header: the coded indices and the directory of chunks.
Row index_row(const Input& input, IndexChoice choice) {
  const Coding coding(input, choice, ValueCoder::sign);
  FrameHeader header;
  std::vector<ChunkInfo> chunks;
  std::size_t used = 0;
  const Status status = read_directory(coding.coded(), header, chunks, used);
  if (!status.ok()) throw std::runtime_error(std::string("bench wire: ") + status.what);
  std::size_t bytes = used - frame_header_bytes;
  for (const ChunkInfo& chunk : chunks) bytes -= chunk.value_bytes;

  Row row = input.row(std::string(choice_names[static_cast<std::size_t>(choice)]));
  row["chunks"] = chunks.size();
  row["bits_per_index"] = bits_each(bytes, input);
  row["bound_bits"] = input.bound_bits();
  row["ratio"] = bits_each(bytes, input) / input.bound_bits();
  row["floor"] = "log2 C(n, k) / k: entropy of a uniform support";
  return row;
}

// The whole frame, nothing left out.
Row frame_row(const Input& input, ValueCoder coder) {
  const Coding coding(input, IndexChoice::golomb, coder);
  const double bound = input.bound_bits() + static_cast<double>(value_bits(coder));
  const double bits = bits_each(coding.bytes, input);
  Row row = input.row("golomb+" + std::string(value_coder_names[static_cast<std::size_t>(coder)]));
  row["bits_per_survivor"] = bits;
  row["bound_bits"] = bound;
  row["ratio"] = bits / bound;
  row["compression"] =
      32.0 * static_cast<double>(input.elements) / (8.0 * static_cast<double>(coding.bytes));
  row["floor"] = "entropy of a uniform support + bits of a value";
  return row;
}

void add_times(const Input& input, IndexChoice choice, ValueCoder coder, double seconds,
               Rows& rows) {
  Coding coding(input, choice, coder);
  const std::string name = std::string(choice_names[static_cast<std::size_t>(choice)]) + "+" +
                           std::string(value_coder_names[static_cast<std::size_t>(coder)]);
  const auto add = [&](const std::string& verb, const std::function<void()>& work) {
    const Timing timing = measure(work, [&] { coding.copy_frame(); }, {seconds, 3});
    Row row = input.row(verb + " " + name);
    add_timing(row, timing);
    row["ns_per_survivor"] = timing.seconds * 1e9 / static_cast<double>(input.indices.size());
    row["floor"] = "memcpy of the frame";
    rows.push_back(std::move(row));
  };
  add("encode", [&] { coding.encode(); });
  add("decode", [&] { coding.decode(); });
}

constexpr IndexChoice choices[] = {IndexChoice::golomb, IndexChoice::elias_fano, IndexChoice::gap,
                                   IndexChoice::smallest};

struct Results {
  Rows indices, frames, times;
};

void run_input(const Input& input, double seconds, Results& results) {
  for (const IndexChoice choice : choices) results.indices.push_back(index_row(input, choice));
  for (std::size_t i = 0; i < value_coder_count; ++i) {
    const auto coder = static_cast<ValueCoder>(i);
    results.frames.push_back(frame_row(input, coder));
    add_times(input, IndexChoice::golomb, coder, seconds, results.times);
  }
  for (const IndexChoice choice : {IndexChoice::elias_fano, IndexChoice::gap}) {
    add_times(input, choice, ValueCoder::log4, seconds, results.times);
  }
}

std::vector<Column> columns_with(std::vector<Column> more) {
  std::vector<Column> columns = {{"name", "coder", Show::text},
                                 {"source", "support", Show::text},
                                 {"elements", "elements", Show::count},
                                 {"density", "density", Show::number},
                                 {"survivors", "survivors", Show::count}};
  more.push_back({"floor", "the floor is", Show::text});
  columns.insert(columns.end(), more.begin(), more.end());
  return columns;
}

void print(const Results& results) {
  std::cout << "Indices (chunk headers included)\n";
  print_table(std::cout,
              columns_with({{"chunks", "chunks", Show::count},
                            {"bits_per_index", "bits/index", Show::number},
                            {"bound_bits", "bound", Show::number},
                            {"ratio", "ratio", Show::number}}),
              results.indices);
  std::cout << "\nFrames (all bytes included)\n";
  print_table(std::cout,
              columns_with({{"bits_per_survivor", "bits/survivor", Show::number},
                            {"bound_bits", "bound", Show::number},
                            {"ratio", "ratio", Show::number},
                            {"compression", "dense/frame", Show::number}}),
              results.frames);
  std::cout << "\nTimes (one frame, one thread)\n";
  print_table(std::cout,
              columns_with({{"seconds", "time", Show::seconds},
                            {"ns_per_survivor", "ns/survivor", Show::number},
                            {"floor_seconds", "floor", Show::seconds},
                            {"ratio", "ratio", Show::number},
                            {"ratio_low", "25 %", Show::number},
                            {"ratio_high", "75 %", Show::number}}),
              results.times);
}

std::vector<Input> inputs_of(const Settings& settings) {
  if (!settings.support.empty()) return {file_input(settings.support)};
  std::vector<Input> inputs;
  for (const std::size_t elements : settings.elements) {
    for (const double density : settings.densities) {
      inputs.push_back(uniform_input(elements, density));
    }
  }
  return inputs;
}

void run(const Settings& settings) {
  Results results;
  for (const Input& input : inputs_of(settings)) {
    progress(input.source + ", " + std::to_string(input.indices.size()) + " survivors");
    run_input(input, settings.seconds, results);
  }
  progress("");
  const Row about = about_machine();
  print_machine(about);
  print(results);
  Rows all = results.indices;
  all.insert(all.end(), results.frames.begin(), results.frames.end());
  all.insert(all.end(), results.times.begin(), results.times.end());
  if (!settings.json.empty()) write_json(settings.json, about, all);
}

}  // namespace
}  // namespace bench_wire_verb

void add_bench_wire(CLI::App& parent) {
  using namespace bench_wire_verb;
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb =
      add_verb(parent, "wire",
               "Measure bits and time of the index and value coders, against the entropy of\n"
               "the support and a copy of the frame",
               "thinwire bench wire --elements 1e7 --density 0.001", settings->json);
  add_counts(*verb, "--elements", settings->elements, "Sizes of the bucket");
  verb->add_option("--density", settings->densities, "Fractions of the elements that survive")
      ->capture_default_str()
      ->type_name("D[,D...]")
      ->delimiter(',')
      ->check(number_in(1e-9, 1));
  verb->add_option("--support", settings->support,
                   "Support to read instead of uniform ones: little-endian uint32\n"
                   "elements, survivors, then the ascending indices (values: the same\n"
                   "name with .f32)")
      ->type_name("FILE")
      ->check(check_input_path);
  verb->add_option("--seconds", settings->seconds, "Seconds to measure one row")
      ->capture_default_str()
      ->type_name("S")
      ->check(number_in(0, 3600));
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
