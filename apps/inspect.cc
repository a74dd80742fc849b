// inspect.cc: `thinwire inspect`: shows a frame's contents, chunk by chunk, and whether it is
// valid. The part in inspect_model.h shows the properties of a model's gradients.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <memory>

#include "apps/flags.h"
#include "apps/inspect_model.h"
#include "apps/inspect_state.h"
#include "apps/synthetic.h"
#include "apps/verb.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"
#include "thinwire/wire/frame.h"

namespace thinwire::apps {
namespace inspect_verb {
namespace {

constexpr std::size_t crc_offset = 16;
constexpr std::string_view coder_names[] = {"golomb", "elias_fano", "gap"};

struct Settings {
  std::string file;
  std::string example;
  std::string scheme = "dgc";
  std::vector<std::size_t> elements = {100'000};
  std::string json;
  ModelSettings model;
};

// A frame in parts, as far as it could be read.
struct Inspection {
  FrameHeader header;
  std::vector<ChunkInfo> chunks;
  std::size_t file_bytes = 0, used = 0;
  std::uint32_t stored_crc = 0, computed_crc = 0;
  Sparse content;

  bool crc_right() const { return stored_crc == computed_crc; }
};

std::vector<std::byte> read_file(const std::string& path) {
  if (const std::string wrong = check_input_path(path); !wrong.empty()) throw BadInput(wrong);
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string hex(std::uint32_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << std::setw(8) << std::setfill('0') << value;
  return text.str();
}

// Adds what a status alone cannot say: which file, how long it is, and what its bytes are instead.
[[noreturn]] void refuse(const std::string& path, const Status& status, ConstBytes bytes) {
  std::string text = "'" + path + "': " + status.what;
  if (status.code == Code::truncated) {
    const bool header = bytes.size() < frame_header_bytes;
    text += "; the file ends after " + std::to_string(bytes.size()) + " bytes, expected " +
            (header ? std::to_string(frame_header_bytes) + " of the header alone" : "more");
  }
  if (status.code == Code::bad_magic) {
    text += "; expected 0x74 0x77 (\"tw\"), got";
    for (std::size_t i = 0; i < std::min<std::size_t>(2, bytes.size()); ++i) {
      std::ostringstream byte;
      byte << " 0x" << std::hex << std::setw(2) << std::setfill('0') << static_cast<int>(bytes[i]);
      text += byte.str();
    }
  }
  if (status.code == Code::bad_version) {
    text += "; expected " + std::to_string(wire_version) + ", got " +
            std::to_string(static_cast<int>(bytes[2]));
  }
  throw BadInput(text);
}

std::uint32_t little_endian(ConstBytes bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<std::uint32_t>(bytes[i]);
  return value;
}

// Reads header, directory and checksum. The contents are decoded separately: a wrong checksum makes
// that impossible, but the rest is still worth showing.
Inspection look_at(const std::string& path, ConstBytes bytes) {
  Inspection seen;
  seen.file_bytes = bytes.size();
  Status status = read_header(bytes, seen.header);
  if (status.ok()) status = read_directory(bytes, seen.header, seen.chunks, seen.used);
  if (!status.ok()) refuse(path, status, bytes);
  seen.stored_crc = little_endian(bytes.subspan(crc_offset, 4));
  seen.computed_crc = crc32c(bytes.subspan(frame_header_bytes, seen.used - frame_header_bytes),
                             crc32c(bytes.first(crc_offset)));
  return seen;
}

std::size_t survivors_of(const Inspection& seen) {
  std::size_t sum = 0;
  for (const ChunkInfo& chunk : seen.chunks) sum += chunk.count;
  return sum;
}

std::string scheme_name(std::uint8_t id) {
  for (const Scheme* scheme : schemes()) {
    if (scheme->id == id) return scheme->name;
  }
  return "unknown";
}

Row header_row(const Inspection& seen) {
  const FrameHeader& header = seen.header;
  return {{"scheme", scheme_name(header.scheme)},
          {"scheme_id", header.scheme},
          {"skipped", header.skipped},
          {"values", std::string(value_coder_names[static_cast<std::size_t>(header.values)])},
          {"chunk_elements", std::uint64_t{1} << header.chunk_log2},
          {"bucket", header.bucket},
          {"step", header.step},
          {"elements", header.elements},
          {"frame_bytes", seen.used},
          {"bytes_behind", seen.file_bytes - seen.used},
          {"crc", hex(seen.stored_crc)},
          {"crc_right", seen.crc_right()}};
}

Row chunk_row(const ChunkInfo& chunk) {
  return {{"first", chunk.first},
          {"extent", chunk.extent},
          {"count", chunk.count},
          {"coder", std::string(coder_names[static_cast<std::size_t>(chunk.indices.coder)])},
          {"parameter", chunk.indices.parameter},
          {"index_bytes", chunk.indices.bytes},
          {"value_bytes", chunk.value_bytes}};
}

const std::vector<Column> columns = {
    {"first", "first", Show::count},
    {"extent", "extent", Show::count},
    {"count", "count", Show::count},
    {"coder", "coder", Show::text},
    {"parameter", "parameter", Show::count},
    {"index_bytes", "index bytes", Show::count},
    {"value_bytes", "value bytes", Show::count},
};

// Sizes and values as one row.
Row summary_row(const Inspection& seen) {
  const std::vector<float>& values = seen.content.values;
  const std::size_t survivors = survivors_of(seen);
  Row row = {{"survivors", survivors}};
  if (survivors == 0 || values.empty()) return row;
  const auto count = static_cast<double>(survivors);
  double sum = 0, smallest = std::abs(values[0]), largest = smallest;
  std::size_t negative = 0;
  for (const float value : values) {
    const double magnitude = std::abs(value);
    sum += magnitude;
    smallest = std::min(smallest, magnitude);
    largest = std::max(largest, magnitude);
    negative += value < 0 ? 1 : 0;
  }
  row["density"] = count / static_cast<double>(seen.header.elements);
  row["bits_per_survivor"] = 8.0 * static_cast<double>(seen.used) / count;
  row["compression"] =
      4.0 * static_cast<double>(seen.header.elements) / static_cast<double>(seen.used);
  row["smallest_magnitude"] = smallest;
  row["mean_magnitude"] = sum / count;
  row["largest_magnitude"] = largest;
  row["negative_share"] = static_cast<double>(negative) / count;
  return row;
}

void inspect(const Settings& settings) {
  const std::vector<std::byte> bytes = read_file(settings.file);
  if (is_state(bytes)) return inspect_state(settings.file, bytes, settings.json);
  Inspection seen = look_at(settings.file, bytes);
  Rows rows;
  for (const ChunkInfo& chunk : seen.chunks) rows.push_back(chunk_row(chunk));
  const Row header = header_row(seen);
  print_fields(std::cout, header);
  print_table(std::cout, columns, rows);
  std::cout << '\n' << std::flush;
  if (!seen.crc_right()) {
    throw BadInput("'" + settings.file + "' is damaged: its checksum says " + hex(seen.stored_crc) +
                   ", expected " + hex(seen.computed_crc) + " for its bytes");
  }
  FrameHeader again;
  std::size_t used = 0;
  const Status status = decode_sparse(bytes, survivors_of(seen), again, seen.content, used);
  if (!status.ok()) refuse(settings.file, status, bytes);
  const Row summary = summary_row(seen);
  print_fields(std::cout, summary);
  if (!settings.json.empty()) {
    write_json(settings.json, {{"header", header}, {"summary", summary}}, rows);
  }
}

// The frame that one worker would send in its first step.
std::vector<std::byte> example_frame(const Config& scheme, std::size_t elements) {
  const Bucket bucket = Bucket::single(0, "example", elements);
  const std::unique_ptr<Compressor> compressor = make_compressor(scheme, bucket, Site{});
  const Leg leg = compressor->leg(0, 0);
  if (leg.reduction != Reduction::gather) {
    throw BadInput("scheme '" + scheme.scheme + "' sends plain numbers to be summed, no frames; " +
                   "choose a scheme that is not reducible (see thinwire schemes)");
  }
  const Gradients source(elements, 1);
  const std::span<const float> values = source.at(0);
  std::vector<float> gradient(values.begin(), values.end());
  std::vector<std::byte> frame(leg.bytes);
  frame.resize(compressor->encode({}, std::span<float>(gradient), frame));
  return frame;
}

void write_example(const Settings& settings) {
  const std::vector<std::byte> frame =
      example_frame(parse_scheme(settings.scheme), settings.elements[0]);
  std::ofstream file(settings.example, std::ios::binary);
  file.write(reinterpret_cast<const char*>(frame.data()),
             static_cast<std::streamsize>(frame.size()));
  file.close();
  if (!file) throw BadInput("cannot write '" + settings.example + "'");
  std::cout << "wrote a frame of " << frame.size() << " bytes to " << settings.example << '\n';
}

void run(Settings& settings) {
  const int asked = (settings.file.empty() ? 0 : 1) + (settings.example.empty() ? 0 : 1) +
                    (settings.model.model.empty() ? 0 : 1);
  if (asked != 1) {
    throw BadInput(
        "inspect: expected a FRAME or checkpoint to read, --example FILE to write, or --model "
        "NAME; see thinwire inspect --help");
  }
  if (!settings.file.empty()) return inspect(settings);
  if (!settings.example.empty()) return write_example(settings);
  settings.model.json = settings.json;
  inspect_model(settings.model);
}

}  // namespace
}  // namespace inspect_verb

void add_inspect(CLI::App& parent) {
  using namespace inspect_verb;
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb = add_verb(
      parent, "inspect",
      "Measure a model's gradients, how small each scheme makes them, and which scheme to\n"
      "use on a link; or show what a frame or a checkpoint holds, and whether it is valid",
      "thinwire inspect --model resnet50 --link 1gbit,1ms\n"
      "  thinwire inspect --model lstm --data stdlib --schemes dgc,topk:density=0.01\n"
      "  thinwire inspect state.rank0\n"
      "  thinwire inspect --example frame.tw --scheme dgc:density=0.01 && "
      "thinwire inspect frame.tw",
      settings->json);
  verb->add_option("frame", settings->file, "Frame or checkpoint to read")->type_name("FILE");
  verb->add_option("--example", settings->example, "File for an example frame")
      ->type_name("FILE")
      ->check(check_output_path);
  verb->add_option("--scheme", settings->scheme, "Scheme of the example")
      ->capture_default_str()
      ->type_name("NAME[:KEY=VALUE,...]");
  add_counts(*verb, "--elements", settings->elements, "Elements of the example")
      ->expected(1)
      ->type_name("N");
  describe(*verb, settings->model);
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
