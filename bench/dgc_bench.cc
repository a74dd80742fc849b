// dgc_bench.cc: compares variants of the DGC pass over one bucket: plain reference, each
// instruction set of this machine, and the streaming floor.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/stream.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/dgc.h"
#include "thinwire/kernels/target.h"

namespace {

using namespace thinwire;

constexpr float momentum = 0.9f;
constexpr float threshold = 2000.0f;

// A state in the middle of training: u has settled for a constant gradient, and v, which grows by u
// in every pass, is anywhere below the threshold. About one element in a thousand then passes it.
struct Arrays {
  explicit Arrays(std::size_t count)
      : g(count), u(count), v(count), index(dgc_block), value(dgc_block), velocity(dgc_block) {
    for (std::size_t i = 0; i < count; ++i) {
      g[i] = random_unit(1, i) - 0.5f;
      u[i] = g[i] / (1.0f - momentum);
      v[i] = threshold * (2.0f * random_unit(2, i) - 1.0f);
    }
  }
  Picked out() { return {index.data(), value.data(), velocity.data()}; }

  std::vector<float> g, u, v;
  std::vector<std::uint32_t> index;
  std::vector<float> value, velocity;
};

using Pass = DgcTally (*)(const DgcRule&, const float*, float*, float*, std::size_t, std::uint32_t,
                          const Picked&);

void run_pass(benchmark::State& state, Pass pass, Accumulate accumulate) {
  Arrays arrays(static_cast<std::size_t>(state.range(0)));
  const DgcRule rule{accumulate, momentum, 1.0f, threshold};
  for (auto _ : state) {
    for (std::size_t at = 0; at < arrays.g.size(); at += dgc_block) {
      const std::size_t count = std::min(dgc_block, arrays.g.size() - at);
      benchmark::DoNotOptimize(pass(rule, arrays.g.data() + at, arrays.u.data() + at,
                                    arrays.v.data() + at, count, static_cast<std::uint32_t>(at),
                                    arrays.out()));
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

void run_on(const std::string& target, benchmark::State& state, Accumulate accumulate) {
  force_kernel_target(target);
  run_pass(state, dgc_pass, accumulate);
  force_kernel_target("");
}

// One size for the first-level cache, one for the last-level cache, and one far beyond both.
void sizes(benchmark::internal::Benchmark* bench) { bench->Arg(2048)->Arg(1 << 20)->Arg(1 << 24); }

void add_ladder(const std::string& name, Accumulate accumulate) {
  sizes(benchmark::RegisterBenchmark((name + "/reference").c_str(), [=](benchmark::State& state) {
    run_pass(state, dgc_pass_reference, accumulate);
  }));
  for (const std::string& target : kernel_targets()) {
    if (target == "reference") continue;
    sizes(benchmark::RegisterBenchmark((name + "/" + target).c_str(), [=](benchmark::State& state) {
      run_on(target, state, accumulate);
    }));
  }
}

}  // namespace

int main(int argc, char** argv) {
  sizes(benchmark::RegisterBenchmark("floor/read3_write2", run_floor));
  add_ladder("momentum", Accumulate::momentum);
  add_ladder("nesterov", Accumulate::nesterov);
  add_ladder("pool", Accumulate::pool);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
