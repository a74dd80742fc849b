// csc_bench.cc: compares variants of the chunk pass (gradient into memory, L1 norm per chunk) over
// one bucket: plain reference, each instruction set of this machine, and the streaming floor.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/stream.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/csc.h"
#include "thinwire/kernels/target.h"

namespace {

using namespace thinwire;

constexpr std::size_t chunk = 32768;

struct Arrays {
  explicit Arrays(std::size_t count) : g(count), u(count), v(count) {
    for (std::size_t i = 0; i < count; ++i) g[i] = random_unit(1, i) - 0.5f;
  }
  std::vector<float> g, u, v;
};

using Pass = double (*)(const MemoryRule&, const float*, float*, float*, std::size_t);

void run_pass(benchmark::State& state, Pass pass, Accumulate accumulate) {
  Arrays arrays(static_cast<std::size_t>(state.range(0)));
  const MemoryRule rule{accumulate, 0.9f};
  for (auto _ : state) {
    for (std::size_t at = 0; at < arrays.g.size(); at += chunk) {
      const std::size_t count = std::min(chunk, arrays.g.size() - at);
      benchmark::DoNotOptimize(
          pass(rule, arrays.g.data() + at, arrays.u.data() + at, arrays.v.data() + at, count));
    }
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 20);
}

void run_floor(benchmark::State& state) {
  Arrays arrays(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    stream_read3_write2(arrays.g.data(), arrays.u.data(), arrays.v.data(), arrays.g.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 20);
}

// One size for the first-level cache, one for the last-level cache, and one far beyond both.
void sizes(benchmark::internal::Benchmark* bench) { bench->Arg(2048)->Arg(1 << 20)->Arg(1 << 24); }

void add_ladder(const std::string& name, Accumulate accumulate) {
  sizes(benchmark::RegisterBenchmark((name + "/reference").c_str(), [=](benchmark::State& state) {
    run_pass(state, csc_pass_reference, accumulate);
  }));
  for (const std::string& target : kernel_targets()) {
    if (target == "reference") continue;
    sizes(benchmark::RegisterBenchmark((name + "/" + target).c_str(), [=](benchmark::State& state) {
      force_kernel_target(target);
      run_pass(state, csc_pass, accumulate);
      force_kernel_target("");
    }));
  }
}

}  // namespace

int main(int argc, char** argv) {
  sizes(benchmark::RegisterBenchmark("floor/read3_write2", run_floor));
  add_ladder("momentum", Accumulate::momentum);
  add_ladder("nesterov", Accumulate::nesterov);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
