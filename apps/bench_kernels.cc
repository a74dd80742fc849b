// bench_kernels.cc: `thinwire bench kernels`: compares the passes over a bucket with the memory
// traffic that they cannot avoid.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <thread>

#include "apps/flags.h"
#include "apps/measure.h"
#include "apps/synthetic.h"
#include "apps/verb.h"
#include "bench/stream.h"
#include "thinwire/core/parallel.h"
#include "thinwire/kernels/average.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/sgd.h"
#include "thinwire/memory/dgc.h"
#include "thinwire/wire/frame.h"

namespace thinwire::apps {
namespace bench_kernels_verb {
namespace {

constexpr double density = 0.001;
constexpr std::uint64_t seed = 1;

struct Settings {
  std::vector<std::size_t> elements = {1'000'000, 10'000'000, 100'000'000};
  std::vector<std::size_t> threads = {1, 2};
  double seconds = 0.5;
  std::string only;
  std::string json;
};

// One kernel at one size, with its arrays, which live as long as the functions.
struct Case {
  std::string floor;  // what the floor does, in words
  double bytes = 0;   // least memory traffic per element
  int warmup = 3;     // pairs
  std::function<void()> work, base;
  std::function<void(Row&)> more = [](Row&) {};  // adds columns that only this kernel has
};

std::vector<float> heavy_tailed_array(std::size_t elements) {
  const Gradients source(elements, seed);
  const std::span<const float> values = source.at(0);
  return {values.begin(), values.end()};
}

// The step as the compressors of topk and dgc run it, at a settled threshold.
struct DgcRun {
  DgcRun(std::size_t elements, Accumulate accumulate)
      : gradients(elements, seed),
        memory(Bucket::single(0, "bench", elements), {.accumulate = accumulate}) {}

  void step() {
    memory.step(gradients.at(steps), 1.0f, density, survivors);
    picked += survivors.size();
    ++steps;
  }

  void add_survivors(Row& row) const {
    row["survivors"] = static_cast<double>(picked) / static_cast<double>(std::max(steps, one));
  }

  static constexpr std::uint64_t one = 1;
  Gradients gradients;
  DgcMemory memory;
  Survivors survivors;
  std::uint64_t steps = 0;
  std::size_t picked = 0;
};

// The threshold needs some steps until u and v reach their final size.
constexpr int settling = 20;

// The floor runs over the arrays of the step itself, so it smooths u and v a little between steps.
// The threshold adapts to that, as it does to anything; `survivors` in the row shows that the right
// number pass.
Case dgc_case(std::size_t elements, Accumulate accumulate) {
  const auto run = std::make_shared<DgcRun>(elements, accumulate);
  const auto floor = [run] {
    const float* g = run->gradients.at(run->steps).data();
    float* u = run->memory.velocity().data();
    float* v = run->memory.residual().data();
    for_shares(run->memory.residual().size(), [=](std::size_t first, std::size_t count) {
      stream_read3_write2(g + first, u + first, v + first, count);
    });
  };
  return {.floor = "stream: read g, u, v, write u, v",
          .bytes = 20,
          .warmup = settling,
          .work = [run] { run->step(); },
          .base = floor,
          .more = [run](Row& row) { run->add_survivors(row); }};
}

Case dgc(std::size_t elements) { return dgc_case(elements, Accumulate::pool); }
Case dgc_nesterov(std::size_t elements) { return dgc_case(elements, Accumulate::nesterov); }

// A copy by plain stores reads the lines that it overwrites, so it moves exactly the bytes of v = v
// + g. It leaves g in v, which is one more gradient whose largest elements are sent.
Case topk(std::size_t elements) {
  const auto run = std::make_shared<DgcRun>(elements, Accumulate::residual);
  const auto floor = [run] {
    const float* g = run->gradients.at(run->steps).data();
    float* v = run->memory.residual().data();
    for_shares(run->memory.residual().size(), [=](std::size_t first, std::size_t count) {
      stream_copy(g + first, v + first, count);
    });
  };
  return {.floor = "stream: copy g over v (reads v's lines too)",
          .bytes = 12,
          .warmup = settling,
          .work = [run] { run->step(); },
          .base = floor,
          .more = [run](Row& row) { run->add_survivors(row); }};
}

// The floor of passes that write a different number of bytes than they read. A copy of m floats by
// plain stores moves 12m bytes: the read, the fetch of the lines to be written, and the write. So m
// is chosen such that the copy moves as many bytes as the pass must, counted in the same way.
struct CopyFloor {
  CopyFloor(std::size_t elements, std::size_t bytes_per_element)
      : to(elements * bytes_per_element / 12) {}

  void run(const float* from) {
    for_shares(to.size(), [&](std::size_t first, std::size_t count) {
      stream_copy(from + first, to.data() + first, count);
    });
  }
  std::vector<float> to;
};

// No stream kernel writes everything that it reads, so this floor writes a third less than
// the pass must.
Case scale(std::size_t elements) {
  const auto x = std::make_shared<std::vector<float>>(heavy_tailed_array(elements));
  return {.floor = "stream: read x, write two thirds of it",
          .bytes = 8,
          .work =
              [x] {
                for_shares(x->size(), [&](std::size_t first, std::size_t count) {
                  scale_finite(x->data() + first, count, -1.0f);  // any other factor would decay
                });
              },
          .base =
              [x] {
                const std::size_t third = x->size() / 3;
                float* all = x->data();
                for_shares(third, [=](std::size_t first, std::size_t count) {
                  stream_read3_write2(all + first, all + third + first, all + 2 * third + first,
                                      count);
                });
              }};
}

Case norm(std::size_t elements) {
  const auto x = std::make_shared<std::vector<float>>(heavy_tailed_array(elements));
  return {.floor = "stream: read x",
          .bytes = 4,
          .work =
              [x] {
                for_shares(x->size(), [&](std::size_t first, std::size_t count) {
                  (void)squared_norm(x->data() + first, count);
                });
              },
          .base =
              [x] {
                for_shares(x->size(), [&](std::size_t first, std::size_t count) {
                  (void)stream_read(x->data() + first, count);
                });
              }};
}

struct CastRun {
  CastRun(std::size_t elements, std::size_t bytes_per_element)
      : wide(heavy_tailed_array(elements)), halves(elements), floor(elements, bytes_per_element) {}
  std::vector<float> wide;
  std::vector<std::uint16_t> halves;
  CopyFloor floor;
};

template <auto cast>
Case cast_down(std::size_t elements) {
  const auto run = std::make_shared<CastRun>(elements, 4 + 2 + 2);
  return {.floor = "stream: a copy that moves as many bytes (8 per element)",
          .bytes = 6,
          .work =
              [run] {
                for_shares(run->wide.size(), [&](std::size_t first, std::size_t count) {
                  cast(run->wide.data() + first, run->halves.data() + first, count, 1.0f);
                });
              },
          .base = [run] { run->floor.run(run->wide.data()); }};
}

template <auto down, auto cast>
Case cast_up(std::size_t elements) {
  const auto run = std::make_shared<CastRun>(elements, 2 + 4 + 4);
  down(run->wide.data(), run->halves.data(), elements, 1.0f);
  return {.floor = "stream: a copy that moves as many bytes (10 per element)",
          .bytes = 6,
          .work =
              [run] {
                for_shares(run->wide.size(), [&](std::size_t first, std::size_t count) {
                  (void)cast(run->halves.data() + first, run->wide.data() + first, count, 1.0f);
                });
              },
          .base = [run] { run->floor.run(run->wide.data()); }};
}

Case sgd(std::size_t elements) {
  struct Arrays {
    std::vector<float> average, weights, decay;
  };
  const auto run = std::make_shared<Arrays>();
  run->average = heavy_tailed_array(elements);
  run->weights = run->decay = std::vector<float>(elements, 0.01f);
  const auto each = [run](const auto& pass) {
    for_shares(run->average.size(), [&](std::size_t first, std::size_t count) {
      pass(run->average.data() + first, run->weights.data() + first, run->decay.data() + first,
           count);
    });
  };
  const SgdRule rule{.rate = 1e-3f, .momentum = 0.9f, .decay = 1e-4f};
  return {.floor = "stream: read average, w, s, write w, s",
          .bytes = 20,
          .work =
              [=] {
                each([&](const float* average, float* w, float* s, std::size_t count) {
                  sgd_step(rule, average, w, s, count);
                });
              },
          .base = [=] { each(stream_read3_write2); }};
}

// What the wire adds to a step: writing and reading the frame of its survivors once.
Case wire_case(std::size_t elements, ValueCoder coder) {
  struct Run {
    Run(std::size_t elements, ValueCoder coder) : dgc(elements, Accumulate::momentum) {
      header.values = coder;
      header.elements = static_cast<std::uint32_t>(elements);
      most = Quota::of(elements, density).most;
      header.chunk_log2 = chunk_log2_for(header.elements, Quota::of(elements, density).wanted);
      frame.resize(sparse_frame_bound(header, most));
      dgc.step();
    }
    void code() {
      sent = dgc.survivors.value;
      bytes = encode_sparse(header, dgc.survivors.index, sent, IndexChoice::golomb, frame);
      FrameHeader read;
      const Status status = decode_sparse(std::span(frame).first(bytes), most, read, back, used);
      if (!status.ok()) throw std::runtime_error(std::string("bench kernels: ") + status.what);
    }
    DgcRun dgc;
    FrameHeader header;
    std::size_t most = 0, bytes = 0, used = 0;
    std::vector<std::byte> frame;
    std::vector<float> sent;
    Sparse back;
  };
  const auto run = std::make_shared<Run>(elements, coder);
  return {.floor = "one DGC step (ratio = share of it)",
          .bytes = 0,
          .warmup = settling,
          .work = [run] { run->code(); },
          .base = [run] { run->dgc.step(); },
          .more =
              [run](Row& row) {
                run->dgc.add_survivors(row);
                row["share"] = row["ratio"];
                row["frame_bytes"] = run->bytes;
              }};
}

Case wire_log4(std::size_t elements) { return wire_case(elements, ValueCoder::log4); }
Case wire_sign(std::size_t elements) { return wire_case(elements, ValueCoder::sign); }

struct Kernel {
  const char* name;
  Case (*make)(std::size_t elements);
};

constexpr Kernel kernels[] = {
    {"dgc", dgc},
    {"dgc-nesterov", dgc_nesterov},
    {"topk", topk},
    {"wire-log4", wire_log4},
    {"wire-sign", wire_sign},
    {"sgd", sgd},
    {"scale", scale},
    {"norm", norm},
    {"to-fp16", cast_down<cast_to_f16>},
    {"from-fp16", cast_up<cast_to_f16, cast_from_f16>},
    {"to-bf16", cast_down<cast_to_bf16>},
    {"from-bf16", cast_up<cast_to_bf16, cast_from_bf16>},
};

std::vector<Kernel> chosen(const std::string& only) {
  std::vector<Kernel> result;
  std::string known;
  for (const Kernel& kernel : kernels) {
    if (std::string(kernel.name).find(only) != std::string::npos) result.push_back(kernel);
    known += (known.empty() ? "" : ", ") + std::string(kernel.name);
  }
  if (result.empty()) throw BadInput("--only: no kernel named '" + only + "'; known: " + known);
  return result;
}

Row run_case(const std::string& name, std::size_t elements, const Case& that, double seconds) {
  const Timing timing = measure(that.work, that.base, {seconds, that.warmup});
  Row row = {{"name", name}, {"elements", elements}, {"threads", threads()}};
  add_timing(row, timing);
  const auto count = static_cast<double>(elements);
  row["ns_per_element"] = timing.seconds * 1e9 / count;
  if (that.bytes > 0) row["gb_per_second"] = that.bytes * count / timing.seconds / 1e9;
  row["floor"] = that.floor;
  that.more(row);
  return row;
}

// The speed-up over one thread, of the kernel and of the floor. The floor's shows what the
// machine's memory allows.
void add_speedup(Row& row, const Row& single) {
  row["speedup"] = single["seconds"].get<double>() / row["seconds"].get<double>();
  row["floor_speedup"] = single["floor_seconds"].get<double>() / row["floor_seconds"].get<double>();
}

void run_kernel(const Kernel& kernel, std::size_t elements, const Settings& settings, Rows& rows) {
  set_threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const Case that = kernel.make(elements);
  Row single;
  for (const std::size_t threads : settings.threads) {
    progress(std::string(kernel.name) + ", " + std::to_string(elements) + " elements, " +
             std::to_string(threads) + " threads");
    set_threads(static_cast<int>(threads));
    Row row = run_case(kernel.name, elements, that, settings.seconds);
    if (threads == 1) {
      single = row;
    } else if (!single.is_null()) {
      add_speedup(row, single);
    }
    rows.push_back(std::move(row));
  }
}

const std::vector<Column> columns = {
    {"name", "kernel", Show::text},
    {"elements", "elements", Show::count},
    {"threads", "threads", Show::count},
    {"seconds", "time", Show::seconds},
    {"floor_seconds", "floor", Show::seconds},
    {"ratio", "ratio", Show::number},
    {"ratio_low", "25 %", Show::number},
    {"ratio_high", "75 %", Show::number},
    {"ns_per_element", "ns/element", Show::number},
    {"gb_per_second", "GB/s", Show::number},
    {"speedup", "speedup", Show::number},
    {"floor_speedup", "floor's", Show::number},
    {"survivors", "survivors", Show::number},
    {"floor", "the floor is", Show::text},
};

void run(const Settings& settings) {
  for (const std::size_t threads : settings.threads) {
    if (threads > 1024) throw BadInput("--threads: expected 1 to 1024");
  }
  const std::vector<Kernel> selected = chosen(settings.only);
  Rows rows;
  for (const Kernel& kernel : selected) {
    for (const std::size_t elements : settings.elements) {
      run_kernel(kernel, elements, settings, rows);
    }
  }
  progress("");
  report(columns, rows, settings.json);
}

}  // namespace
}  // namespace bench_kernels_verb

void add_bench_kernels(CLI::App& parent) {
  using namespace bench_kernels_verb;
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb = add_verb(
      parent, "kernels",
      "Measure the passes over a bucket (DGC step, top-k, casts, norm, optimizer, coding) against\n"
      "the memory traffic that they cannot avoid, measured in the same run",
      "thinwire bench kernels --elements 1e6,1e7 --threads 1,2 --only dgc", settings->json);
  add_counts(*verb, "--elements", settings->elements,
             "Sizes of the bucket (1e9 needs 13 GB of memory)");
  add_counts(*verb, "--threads", settings->threads, "Numbers of threads");
  verb->add_option("--seconds", settings->seconds, "Seconds to measure one row")
      ->capture_default_str()
      ->type_name("S")
      ->check(number_in(0, 3600));
  verb->add_option("--only", settings->only, "Measure only kernels whose name contains this")
      ->type_name("NAME");
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
