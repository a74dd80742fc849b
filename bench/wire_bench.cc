// wire_bench.cc: index and value coders on one chunk, without the surrounding frame.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "thinwire/core/random.h"
#include "thinwire/wire/index.h"
#include "thinwire/wire/values.h"

namespace {

using namespace thinwire;

constexpr std::size_t survivors = 1000;  // about what a chunk holds

// One of every `gap` elements, at a random position in its range.
std::vector<std::uint32_t> support(std::uint32_t gap) {
  std::vector<std::uint32_t> indices(survivors);
  for (std::uint32_t i = 0; i < survivors; ++i) indices[i] = i * gap + random_below(1, i, gap);
  return indices;
}

std::vector<float> heavy_values() {
  std::vector<float> values(survivors);
  for (std::size_t i = 0; i < survivors; ++i) {
    const float magnitude = 1.0f / (random_unit(2, i) + 0.01f);
    values[i] = (random_at(3, i) & 1) != 0 ? magnitude : -magnitude;
  }
  return values;
}

void count_survivors(benchmark::State& state, std::size_t bytes) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(survivors));
  state.counters["bits"] = 8.0 * static_cast<double>(bytes) / survivors;
}

void index_encoding(benchmark::State& state, IndexChoice choice) {
  const auto gap = static_cast<std::uint32_t>(state.range(0));
  const std::vector<std::uint32_t> indices = support(gap);
  const auto extent = static_cast<std::uint32_t>(survivors * gap);
  std::vector<std::byte> out(index_bound(survivors, extent));
  IndexCode code;
  for (auto _ : state) {
    code = index_encode(indices, extent, choice, out);
    benchmark::ClobberMemory();
  }
  count_survivors(state, code.bytes);
}

void index_decoding(benchmark::State& state, IndexChoice choice) {
  const auto gap = static_cast<std::uint32_t>(state.range(0));
  std::vector<std::uint32_t> indices = support(gap);
  const auto extent = static_cast<std::uint32_t>(survivors * gap);
  std::vector<std::byte> out(index_bound(survivors, extent));
  const IndexCode code = index_encode(indices, extent, choice, out);
  const ConstBytes bytes = ConstBytes(out).first(code.bytes);
  for (auto _ : state) {
    if (!index_decode(code, bytes, extent, indices).ok()) state.SkipWithError("does not decode");
    benchmark::ClobberMemory();
  }
  count_survivors(state, code.bytes);
}

void value_encoding(benchmark::State& state, ValueCoder coder) {
  std::vector<float> values = heavy_values();
  std::vector<std::byte> out(value_bytes(coder, survivors));
  for (auto _ : state) {
    value_encode(coder, values, out);
    benchmark::ClobberMemory();
  }
  count_survivors(state, out.size());
}

void value_decoding(benchmark::State& state, ValueCoder coder) {
  std::vector<float> values = heavy_values();
  std::vector<std::byte> out(value_bytes(coder, survivors));
  value_encode(coder, values, out);
  for (auto _ : state) {
    if (!value_decode(coder, out, values).ok()) state.SkipWithError("does not decode");
    benchmark::ClobberMemory();
  }
  count_survivors(state, out.size());
}

void add_index(const std::string& name, IndexChoice choice) {
  const auto add = [&](const std::string& verb, auto body) {
    benchmark::RegisterBenchmark((verb + "/" + name).c_str(), body, choice)
        ->Arg(10)
        ->Arg(100)
        ->Arg(1000);
  };
  add("index_encode", index_encoding);
  add("index_decode", index_decoding);
}

}  // namespace

int main(int argc, char** argv) {
  add_index("golomb", IndexChoice::golomb);
  add_index("elias_fano", IndexChoice::elias_fano);
  add_index("gap", IndexChoice::gap);
  for (std::size_t i = 0; i < value_coder_count; ++i) {
    const std::string name(value_coder_names[i]);
    const auto coder = static_cast<ValueCoder>(i);
    benchmark::RegisterBenchmark(("value_encode/" + name).c_str(), value_encoding, coder);
    benchmark::RegisterBenchmark(("value_decode/" + name).c_str(), value_decoding, coder);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
