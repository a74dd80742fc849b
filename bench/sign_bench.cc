// sign_bench.cc: compares variants of the passes that send signs: plain reference, each instruction
// set of this machine, whole codecs, and a streaming floor that moves as many bytes.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/stream.h"
#include "thinwire/compress/sign.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/sign.h"
#include "thinwire/kernels/signum.h"
#include "thinwire/kernels/target.h"
#include "thinwire/kernels/threshold.h"

namespace {

using namespace thinwire;

constexpr double bytes_per_element = 12.125;  // read g, r, write r and a bit
constexpr std::size_t group = 4608;           // a row of 512 x 3 x 3

struct Arrays {
  explicit Arrays(std::size_t count) : g(count), r(count), bits(count / 8 + 1), more(bits) {
    for (std::size_t i = 0; i < count; ++i) g[i] = random_unit(1, i) - 0.5f;
  }
  std::vector<float> g, r;
  std::vector<std::uint8_t> bits, more;
};

using Body = void (*)(Arrays&);

void onebit_reference(Arrays& a) {
  for (std::size_t at = 0; at < a.g.size(); at += group) {
    const std::size_t count = std::min(group, a.g.size() - at);
    const SignSums sums = sign_scan_reference(&a.g[at], &a.r[at], count, &a.bits[at / 8]);
    sign_settle_reference(&a.g[at], &a.r[at], count, static_cast<float>(sums.high),
                          static_cast<float>(sums.low));
  }
}

void onebit(Arrays& a) {
  for (std::size_t at = 0; at < a.g.size(); at += group) {
    const std::size_t count = std::min(group, a.g.size() - at);
    const SignSums sums = sign_scan(&a.g[at], &a.r[at], count, &a.bits[at / 8]);
    // Any two levels cost the same. These keep r stable.
    sign_settle(&a.g[at], &a.r[at], count, static_cast<float>(sums.high * 1e-30) + 0.25f, -0.25f);
  }
}

void signum_slow(Arrays& a) {
  signum_pass_reference(0.9f, a.g.data(), a.r.data(), a.g.size(), a.bits.data(), a.more.data());
}

void signum(Arrays& a) {
  signum_pass(0.9f, a.g.data(), a.r.data(), a.g.size(), a.bits.data(), a.more.data());
}

// tau = 25 with |g| <= 0.5: about one element in a hundred is sent.
void threshold_slow(Arrays& a) {
  (void)threshold_pass_reference(25, a.g.data(), a.r.data(), a.g.size(), a.bits.data(),
                                 a.more.data());
}

void threshold(Arrays& a) {
  (void)threshold_pass(25, a.g.data(), a.r.data(), a.g.size(), a.bits.data(), a.more.data());
}

void run_body(benchmark::State& state, Body body) {
  Arrays arrays(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    body(arrays);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(
      static_cast<double>(state.iterations() * state.range(0)) * bytes_per_element));
}

// The cost of a step without frames: groups, levels, steering, the form.
void run_codec(benchmark::State& state, Codec& codec) {
  Arrays arrays(static_cast<std::size_t>(state.range(0)));
  std::vector<std::byte> payload(codec.payload_bytes());
  // A steered threshold needs some steps to settle.
  for (int step = 0; step < 60; ++step) (void)codec.encode(arrays.g, arrays.r, 0, payload);
  for (auto _ : state) benchmark::DoNotOptimize(codec.encode(arrays.g, arrays.r, 0, payload).bytes);
  state.SetBytesProcessed(static_cast<std::int64_t>(
      static_cast<double>(state.iterations() * state.range(0)) * bytes_per_element));
}

void run_sign_codec(benchmark::State& state) {
  std::vector<SignGroup> groups;
  cut_evenly(0, static_cast<std::size_t>(state.range(0)), group, groups);
  SignCodec codec(SignLevels::two_means, groups);
  run_codec(state, codec);
}

void run_threshold_codec(benchmark::State& state) {
  ThresholdCodec codec({.density = 0.01},
                       Bucket::single(0, "w", static_cast<std::size_t>(state.range(0))));
  run_codec(state, codec);
}

// Reads three arrays and writes two, over fewer elements, so that as many bytes move.
void run_floor(benchmark::State& state) {
  const auto count =
      static_cast<std::size_t>(static_cast<double>(state.range(0)) * bytes_per_element / 20);
  std::vector<float> g(count, 1), u(count), v(count);
  for (auto _ : state) {
    stream_read3_write2(g.data(), u.data(), v.data(), count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(count) * 20);
}

void sizes(benchmark::internal::Benchmark* bench) { bench->Arg(4608)->Arg(1 << 20)->Arg(1 << 24); }

void add_ladder(const std::string& name, Body reference, Body fast) {
  sizes(benchmark::RegisterBenchmark((name + "/reference").c_str(),
                                     [=](benchmark::State& state) { run_body(state, reference); }));
  for (const std::string& target : kernel_targets()) {
    if (target == "reference") continue;
    sizes(benchmark::RegisterBenchmark((name + "/" + target).c_str(), [=](benchmark::State& state) {
      force_kernel_target(target);
      run_body(state, fast);
      force_kernel_target("");
    }));
  }
}

}  // namespace

int main(int argc, char** argv) {
  sizes(benchmark::RegisterBenchmark("floor/same_bytes", run_floor));
  add_ladder("onebit", onebit_reference, onebit);
  add_ladder("signum", signum_slow, signum);
  add_ladder("threshold", threshold_slow, threshold);
  sizes(benchmark::RegisterBenchmark("codec/onebit", run_sign_codec));
  sizes(benchmark::RegisterBenchmark("codec/threshold", run_threshold_codec));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
