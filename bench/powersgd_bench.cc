// powersgd_bench.cc: compares variants of PowerSGD's three passes over square matrices and a wide
// one: plain reference, each instruction set of this machine, and the streaming floor.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/stream.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/powersgd.h"
#include "thinwire/kernels/target.h"

namespace {

using namespace thinwire;

struct Arrays {
  Arrays(const benchmark::State& state)
      : panel{static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(1)),
              static_cast<std::size_t>(state.range(1)), static_cast<std::size_t>(state.range(2))},
        g(panel.rows * panel.cols),
        e(g.size()),
        average(g.size()),
        p(panel.rows * panel.rank),
        q(panel.cols * panel.rank) {
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = 1e-3f * (random_unit(1, i) - 0.5f);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = random_unit(2, i) - 0.5f;
  }
  Panel panel;
  std::vector<float> g, e, average, p, q;
};

struct Passes {
  decltype(&powersgd_take) take;
  decltype(&powersgd_project) project;
  decltype(&powersgd_give) give, settle;
};
constexpr Passes fast{powersgd_take, powersgd_project, powersgd_give, powersgd_settle};
constexpr Passes plain{powersgd_take_reference, powersgd_project_reference, powersgd_give_reference,
                       powersgd_settle_reference};

// One step of a matrix. Factors are small, so that they neither grow nor vanish when repeated.
void run_step(benchmark::State& state, const Passes& passes) {
  Arrays a(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(passes.take(a.panel, a.g.data(), a.e.data(), a.q.data(), a.p.data()));
    passes.project(a.panel, a.e.data(), a.p.data(), a.q.data());
    for (float& x : a.q) x = 1e-3f;
    passes.give(a.panel, a.p.data(), a.q.data(), a.average.data());
    passes.settle(a.panel, a.p.data(), a.q.data(), a.e.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(a.g.size()) * 28);
}

// The two loops move 20 and 8 of the 28 bytes per element.
void run_floor(benchmark::State& state) {
  Arrays a(state);
  std::vector<float> more(a.g.size());
  for (auto _ : state) {
    stream_read3_write2(a.g.data(), a.e.data(), a.average.data(), a.g.size());
    for (std::size_t i = 0; i < more.size(); ++i) more[i] = a.g[i];
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(a.g.size()) * 28);
}

void shapes(benchmark::internal::Benchmark* bench) {
  for (const int rank : {1, 2, 4, 8}) {
    bench->Args({1024, 1024, rank})->Args({4096, 4096, rank})->Args({512, 4608, rank});
  }
}

void run_on(const std::string& target, benchmark::State& state) {
  force_kernel_target(target);
  run_step(state, fast);
  force_kernel_target("");
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("floor/28_bytes", run_floor)
      ->Args({1024, 1024, 1})
      ->Args({4096, 4096, 1})
      ->Args({512, 4608, 1});
  shapes(benchmark::RegisterBenchmark("step/reference",
                                      [](benchmark::State& state) { run_step(state, plain); }));
  for (const std::string& target : kernel_targets()) {
    if (target == "reference") continue;
    shapes(benchmark::RegisterBenchmark(
        ("step/" + target).c_str(), [target](benchmark::State& state) { run_on(target, state); }));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
