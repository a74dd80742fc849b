// spectrum_bench.cc: atomo's decomposition of a matrix, writing three triplets, over the layers of
// an LSTM of width 200 and some others.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <vector>

#include "thinwire/compress/spectrum.h"
#include "thinwire/core/random.h"

namespace {

using namespace thinwire;

void run_spectrum(benchmark::State& state) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const auto cols = static_cast<std::size_t>(state.range(1));
  std::vector<float> matrix(rows * cols), u(rows), v(cols);
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = random_unit(1, i) - 0.5f;
  for (auto _ : state) {
    const Spectrum spectrum(matrix, rows, cols);
    for (std::size_t part = 0; part < 3; ++part) spectrum.write(part, u.data(), v.data());
    benchmark::DoNotOptimize(u.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(run_spectrum)
    ->Name("spectrum")
    ->Args({800, 200})
    ->Args({200, 800})
    ->Args({200, 200})
    ->Args({1500, 400})
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
