// state.cc: state by name, in memory and as bytes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files and frames are little-endian memory images");

constexpr char magic[4] = {'t', 'w', 's', 't'};
constexpr std::uint32_t version = 1;
constexpr std::size_t longest_name = 4096;

class Writer {
 public:
  void raw(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), bytes, bytes + size);
  }
  template <typename T>
  void value(T value) {
    raw(&value, sizeof value);
  }
  std::vector<std::byte> take() { return std::move(out_); }
  ConstBytes bytes() const { return out_; }

 private:
  std::vector<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(ConstBytes bytes) : rest_(bytes) {}

  bool raw(void* data, std::size_t size) {
    if (size > rest_.size()) return false;
    if (size > 0) std::memcpy(data, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return true;
  }
  template <typename T>
  bool value(T& value) {
    return raw(&value, sizeof value);
  }
  std::size_t left() const { return rest_.size(); }

 private:
  ConstBytes rest_;
};

constexpr Status short_of_bytes{Code::truncated, "state ends inside an entry"};

Status read_entry(Reader& reader, std::string& name, StateEntry& entry) {
  std::uint32_t name_size = 0;
  if (!reader.value(name_size)) return short_of_bytes;
  if (name_size > longest_name) return {Code::bad_value, "name longer than 4096 bytes"};
  if (name_size > reader.left()) return short_of_bytes;
  name.resize(name_size);
  std::uint8_t is_tensor = 0, share = 0;
  if (!reader.raw(name.data(), name_size) || !reader.value(is_tensor) || !reader.value(share))
    return short_of_bytes;
  if (is_tensor > 1) return {Code::bad_value, "unknown kind of entry"};
  if (share > static_cast<std::uint8_t>(Share::local))
    return {Code::bad_value, "unknown share of entry"};
  entry.is_tensor = is_tensor == 1;
  entry.share = static_cast<Share>(share);
  if (!entry.is_tensor) return reader.value(entry.number) ? Status{} : short_of_bytes;
  std::uint64_t count = 0;
  if (!reader.value(count)) return short_of_bytes;
  if (count > reader.left() / sizeof(float)) return short_of_bytes;
  entry.values.resize(count);
  return reader.raw(entry.values.data(), count * sizeof(float)) ? Status{} : short_of_bytes;
}

}  // namespace

void visit_by_parameter(StateVisitor& visitor, const Bucket& bucket, const std::string& suffix,
                        std::span<float> values, Share share) {
  for (const Parameter& parameter : bucket.parameters) {
    visitor.tensor(parameter.name + "/" + suffix, values.subspan(parameter.offset, parameter.count),
                   share);
  }
}

void StateSaver::tensor(const std::string& name, std::span<float> values, Share share) {
  if (!state_.emplace(name, StateEntry{share, {values.begin(), values.end()}, 0, true}).second) {
    fail("state '", name, "' is saved twice; parameter names must differ between buckets");
  }
}

void StateSaver::number(const std::string& name, double& value, Share share) {
  if (!state_.emplace(name, StateEntry{share, {}, value, false}).second) {
    fail("state '", name, "' is saved twice; bucket numbers must differ");
  }
}

const StateEntry& StateLoader::find(const std::string& name, bool tensor) const {
  const auto found = state_.find(name);
  if (found == state_.end()) {
    fail("state '", name,
         "' is not in the checkpoint; load one that was saved with the same scheme and parameters");
  }
  if (found->second.is_tensor != tensor) {
    fail("state '", name, "': expected a ", tensor ? "tensor" : "number", ", the checkpoint has a ",
         tensor ? "number" : "tensor");
  }
  return found->second;
}

void StateLoader::tensor(const std::string& name, std::span<float> values, Share) {
  const StateEntry& entry = find(name, true);
  if (entry.values.size() != values.size()) {
    fail("state '", name, "': expected ", values.size(), " elements, the checkpoint has ",
         entry.values.size());
  }
  const auto bad = std::find_if_not(entry.values.begin(), entry.values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad != entry.values.end()) {
    fail("state '", name, "': element ", bad - entry.values.begin(), " is ", *bad,
         ", expected a finite number; load an earlier checkpoint");
  }
  std::copy(entry.values.begin(), entry.values.end(), values.begin());
}

void StateLoader::number(const std::string& name, double& value, Share) {
  value = find(name, false).number;
}

std::vector<std::byte> serialize(const State& state) {
  Writer writer;
  writer.raw(magic, sizeof magic);
  writer.value(version);
  writer.value(static_cast<std::uint64_t>(state.size()));
  for (const auto& [name, entry] : state) {
    if (name.size() > longest_name)
      fail("state '", name.substr(0, 40), "...': a name has at most 4096 bytes");
    writer.value(static_cast<std::uint32_t>(name.size()));
    writer.raw(name.data(), name.size());
    writer.value(static_cast<std::uint8_t>(entry.is_tensor));
    writer.value(static_cast<std::uint8_t>(entry.share));
    if (entry.is_tensor) {
      writer.value(static_cast<std::uint64_t>(entry.values.size()));
      writer.raw(entry.values.data(), entry.values.size() * sizeof(float));
    } else {
      writer.value(entry.number);
    }
  }
  writer.value(crc32c(writer.bytes()));
  return writer.take();
}

Status deserialize(ConstBytes bytes, State& state) {
  state.clear();
  Reader reader(bytes);
  char got_magic[4] = {};
  std::uint32_t got_version = 0;
  std::uint64_t entries = 0;
  if (!reader.raw(got_magic, sizeof got_magic)) return {Code::truncated, "shorter than its magic"};
  if (std::memcmp(got_magic, magic, sizeof magic) != 0)
    return {Code::bad_magic, "not a thinwire state"};
  if (!reader.value(got_version)) return {Code::truncated, "shorter than its header"};
  if (got_version != version)
    return {Code::bad_version, "written by another version of the state format"};
  if (bytes.size() < sizeof magic + sizeof version + sizeof entries + sizeof(std::uint32_t)) {
    return {Code::truncated, "shorter than its header"};
  }
  const std::size_t body = bytes.size() - sizeof(std::uint32_t);
  std::uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + body, sizeof crc);
  if (crc != crc32c(bytes.first(body)))
    return {Code::bad_checksum, "checksum differs: damaged or cut short"};
  Reader content(bytes.first(body).subspan(sizeof magic + sizeof version));
  if (!content.value(entries)) return {Code::truncated, "shorter than its header"};
  for (std::uint64_t i = 0; i < entries; ++i) {
    std::string name;
    StateEntry entry;
    if (const Status status = read_entry(content, name, entry); !status.ok()) return status;
    // Names must ascend, as serialize() writes them: equal states have equal bytes, and no name
    // occurs twice.
    if (!state.empty() && name <= state.rbegin()->first)
      return {Code::bad_value, "names are not in ascending order"};
    state.emplace_hint(state.end(), std::move(name), std::move(entry));
  }
  if (content.left() != 0) return {Code::bad_value, "bytes behind the last entry"};
  return {};
}

void save_file(const std::string& path, const State& state) {
  const std::vector<std::byte> bytes = serialize(state);
  const std::string beside = path + ".new";
  {
    std::ofstream file(beside, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.flush();
    if (!file) {
      std::remove(beside.c_str());
      fail("cannot write state to '", beside, "'; is there room, and may we write there?");
    }
  }
  std::error_code error;
  std::filesystem::rename(beside, path, error);
  if (error) fail("cannot rename '", beside, "' to '", path, "': ", error.message());
}

State load_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail("cannot open state file '", path, "'");
  // A folder opens too, and some file systems give it a huge size.
  if (!std::filesystem::is_regular_file(path))
    fail("cannot read state file '", path, "': it is no regular file");
  const std::streamsize size = file.tellg();
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!file) fail("cannot read state file '", path, "'");
  State state;
  if (const Status status = deserialize(bytes, state); !status.ok()) {
    fail("state file '", path, "' (", bytes.size(), " bytes): ", status.what,
         "; use another checkpoint");
  }
  return state;
}

}  // namespace thinwire
