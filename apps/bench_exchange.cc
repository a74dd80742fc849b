// bench_exchange.cc: `thinwire bench exchange`: whole steps among ranks of this process, scheme by
// scheme, against a plain all-reduce in the same run.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>

#include "apps/measure.h"
#include "apps/synthetic.h"
#include "apps/verb.h"
#include "thinwire/thinwire.h"

namespace thinwire::apps {
namespace bench_exchange_verb {
namespace {

constexpr std::size_t most_ranks = 256;

struct Settings {
  std::vector<std::size_t> ranks = {2, 4};
  std::vector<std::size_t> elements = {1'000'000};
  std::vector<std::size_t> buckets = {4};
  std::vector<std::size_t> steps = {20};
  std::string schemes;
  std::string exchange = "auto";
  std::string link;
  std::string json;
};

struct Plan {
  Config scheme;
  ExchangeKind exchange;
  int ranks = 1;
  std::size_t elements = 0;
  std::size_t buckets = 1;
  std::size_t steps = 0;
  const Link* link = nullptr;
};

using Groups = std::vector<std::unique_ptr<Group>>;

Groups make_groups(const Plan& plan) {
  Groups groups = make_local_groups(plan.ranks);
  if (plan.link == nullptr) return groups;
  for (std::unique_ptr<Group>& group : groups) group = emulate_link(std::move(group), *plan.link);
  return groups;
}

std::vector<Bucket> make_buckets(const Plan& plan) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < plan.buckets; ++i) {
    const std::size_t from = plan.elements * i / plan.buckets;
    const std::size_t to = plan.elements * (i + 1) / plan.buckets;
    const std::string name = "bucket" + std::to_string(i);
    buckets.push_back(Bucket::single(static_cast<std::uint16_t>(i), name, to - from));
  }
  return buckets;
}

// One rank: its whole gradient, and the range of it that belongs to each bucket.
class Worker {
 public:
  Worker(const Plan& plan, Group& group, Group& plain)
      : group_(group),
        plain_(plain),
        buckets_(make_buckets(plan)),
        exchange_(group, buckets_, plan.scheme, {.kind = plan.exchange}),
        source_(plan.elements, 100 + static_cast<std::uint64_t>(group.rank())),
        gradient_(plan.elements) {}

  // All ranks start each of these together, so that waiting for others does not count as work.
  double exchange_step() {
    return timed(group_, [this] {
      std::size_t at = 0;
      for (const Bucket& bucket : buckets_) {
        exchange_.submit(bucket.id, part(at, bucket));
        at += bucket.elements();
      }
      exchange_.finish();
    });
  }

  double plain_step() {
    return timed(plain_, [this] {
      std::vector<Pending> pending;
      std::size_t at = 0;
      for (const Bucket& bucket : buckets_) {
        const Bytes data = std::as_writable_bytes(part(at, bucket));
        pending.push_back(plain_.all_reduce(data, DType::f32, ReduceOp::sum, {}));
        at += bucket.elements();
      }
      for (Pending& each : pending) each.wait();
    });
  }

  Report report() const { return exchange_.report(); }

 private:
  std::span<float> part(std::size_t at, const Bucket& bucket) {
    return std::span(gradient_).subspan(at, bucket.elements());
  }

  template <typename Body>
  double timed(Group& group, const Body& body) {
    const std::span<const float> fresh = source_.at(steps_++);
    std::copy(fresh.begin(), fresh.end(), gradient_.begin());
    group.barrier().wait();
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Group& group_;
  Group& plain_;
  std::vector<Bucket> buckets_;
  Exchange exchange_;
  Gradients source_;
  std::vector<float> gradient_;
  std::uint64_t steps_ = 0;
};

// The ranks' samples. A step takes as long as it did on the slowest rank.
struct Samples {
  explicit Samples(const Plan& plan)
      : work(plan.steps * static_cast<std::size_t>(plan.ranks)), floor(work.size()) {}
  std::vector<double> work, floor;  // by step, then rank
  Report before, after;             // of rank 0
  std::string engine;
};

void run_worker(const Plan& plan, Worker& worker, std::size_t rank, Samples& samples) {
  constexpr int settling = 3;  // thresholds, caches, the first touch of every buffer
  for (int i = 0; i < settling; ++i) {
    worker.exchange_step();
    worker.plain_step();
  }
  if (rank == 0) samples.before = worker.report();
  for (std::size_t step = 0; step < plan.steps; ++step) {
    const std::size_t at = step * static_cast<std::size_t>(plan.ranks) + rank;
    samples.work[at] = worker.exchange_step();
    samples.floor[at] = worker.plain_step();
  }
  if (rank == 0) samples.after = worker.report();
}

Samples collect(const Plan& plan) {
  const Groups groups = make_groups(plan), plain = make_groups(plan);
  Samples samples(plan);
  samples.engine = groups[0]->name();
  // run_local provides the threads. The groups are our own, because the link must wrap them, and
  // because the floor must not use an exchange's group.
  run_local(plan.ranks, [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Worker worker(plan, *groups[rank], *plain[rank]);
    run_worker(plan, worker, rank, samples);
  });
  return samples;
}

// The time of the slowest rank in each step.
std::vector<double> slowest(const std::vector<double>& samples, std::size_t ranks) {
  std::vector<double> result;
  for (std::size_t at = 0; at < samples.size(); at += ranks) {
    const auto first = samples.begin() + static_cast<std::ptrdiff_t>(at);
    result.push_back(*std::max_element(first, first + static_cast<std::ptrdiff_t>(ranks)));
  }
  return result;
}

Timing timing_of(const Samples& samples, std::size_t ranks) {
  std::vector<double> work = slowest(samples.work, ranks), floor = slowest(samples.floor, ranks);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < work.size(); ++i) ratios.push_back(work[i] / floor[i]);
  return {.seconds = quantile(work, 0.5),
          .floor_seconds = quantile(floor, 0.5),
          .ratio = quantile(ratios, 0.5),
          .ratio_low = quantile(ratios, 0.25),
          .ratio_high = quantile(ratios, 0.75),
          .pairs = work.size()};
}

Row run_plan(const Plan& plan) {
  const Samples samples = collect(plan);
  const Report &before = samples.before, &after = samples.after;
  const auto per_step = [&](auto late, auto early) {
    return static_cast<double>(late - early) / static_cast<double>(plan.steps);
  };
  Row row = {
      {"name", plan.scheme.str()},        {"exchange", plan.exchange.str()},
      {"engine", samples.engine},         {"ranks", plan.ranks},
      {"elements", plan.elements},        {"buckets", plan.buckets},
      {"emulated", plan.link != nullptr}, {"link", plan.link != nullptr ? plan.link->str() : ""}};
  add_timing(row, timing_of(samples, static_cast<std::size_t>(plan.ranks)));
  row["payload_bytes"] = per_step(after.payload_bytes, before.payload_bytes);
  row["dense_bytes"] = per_step(after.dense_bytes, before.dense_bytes);
  row["compression"] = row["dense_bytes"].get<double>() / row["payload_bytes"].get<double>();
  row["sent_bytes"] = per_step(after.traffic.sent, before.traffic.sent);
  row["received_bytes"] = per_step(after.traffic.received, before.traffic.received);
  row["encode_seconds"] = per_step(after.encode_seconds, before.encode_seconds);
  row["wait_seconds"] = per_step(after.wait_seconds, before.wait_seconds);
  row["decode_seconds"] = per_step(after.decode_seconds, before.decode_seconds);
  row["floor"] = "plain all-reduce of f32, bucket by bucket";
  return row;
}

const std::vector<Column> columns = {
    {"name", "scheme", Show::text},
    {"exchange", "exchange", Show::text},
    {"engine", "engine", Show::text},
    {"ranks", "ranks", Show::count},
    {"elements", "elements", Show::count},
    {"buckets", "buckets", Show::count},
    {"seconds", "step", Show::seconds},
    {"floor_seconds", "floor", Show::seconds},
    {"ratio", "ratio", Show::number},
    {"ratio_low", "25 %", Show::number},
    {"ratio_high", "75 %", Show::number},
    {"encode_seconds", "encode", Show::seconds},
    {"wait_seconds", "wait", Show::seconds},
    {"decode_seconds", "decode", Show::seconds},
    {"payload_bytes", "payload", Show::bytes},
    {"compression", "dense/payload", Show::number},
    {"sent_bytes", "sent by a rank", Show::bytes},
    {"floor", "the floor is", Show::text},
};

bool fits(const ExchangeKind& exchange, const Config& scheme) {
  try {
    check_fit(exchange, scheme);
  } catch (const Error&) {
    return false;
  }
  return true;
}

// By default, all schemes that this kind of exchange supports.
std::vector<Config> schemes_of(const std::string& text, const ExchangeKind& exchange) {
  if (!text.empty()) return parse_schemes(text);
  std::vector<Config> all;
  for (const Scheme* scheme : schemes()) {
    const Config config{scheme->name, {}};
    if (fits(exchange, config)) all.push_back(config);
  }
  return all;
}

ExchangeKind parse_exchange(const Settings& settings) {
  try {
    ExchangeKind exchange = ExchangeKind::parse(settings.exchange);
    for (const Config& scheme : schemes_of(settings.schemes, exchange)) check_fit(exchange, scheme);
    for (const std::size_t ranks : settings.ranks) check_fit(exchange, static_cast<int>(ranks));
    return exchange;
  } catch (const Error& error) {
    throw BadInput(std::string("--exchange: ") + error.what());
  }
}

Link parse_link(const std::string& text) {
  try {
    return Link::parse(text);
  } catch (const Error& error) {
    throw BadInput(std::string("--link: ") + error.what());
  }
}

void check(const Settings& settings) {
  for (const std::size_t ranks : settings.ranks) {
    if (ranks > most_ranks) {
      throw BadInput("--ranks: expected at most " + std::to_string(most_ranks) + ", got " +
                     std::to_string(ranks));
    }
  }
  if (settings.buckets[0] > 65535) throw BadInput("--buckets: expected at most 65535");
}

void run(const Settings& settings) {
  check(settings);
  const ExchangeKind exchange = parse_exchange(settings);
  const std::vector<Config> schemes = schemes_of(settings.schemes, exchange);
  const Link link = settings.link.empty() ? Link{} : parse_link(settings.link);
  Rows rows;
  for (const std::size_t ranks : settings.ranks) {
    for (const Config& scheme : schemes) {
      progress(scheme.str() + ", " + std::to_string(ranks) + " ranks");
      rows.push_back(run_plan({.scheme = scheme,
                               .exchange = exchange,
                               .ranks = static_cast<int>(ranks),
                               .elements = settings.elements[0],
                               .buckets = settings.buckets[0],
                               .steps = settings.steps[0],
                               .link = settings.link.empty() ? nullptr : &link}));
    }
  }
  progress("");
  report(columns, rows, settings.json);
}

}  // namespace
}  // namespace bench_exchange_verb

void add_bench_exchange(CLI::App& parent) {
  using namespace bench_exchange_verb;
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb = add_verb(
      parent, "exchange",
      "Measure whole steps of each scheme among ranks (threads of this process) against a\n"
      "plain all-reduce; --link emulates a network",
      "thinwire bench exchange --ranks 2,4 --schemes dense,dgc:density=0.01 --link 100mbit,1ms",
      settings->json);
  add_counts(*verb, "--ranks", settings->ranks, "Numbers of ranks");
  add_counts(*verb, "--elements", settings->elements, "Elements of the model")
      ->expected(1)
      ->type_name("N");
  add_counts(*verb, "--buckets", settings->buckets, "Buckets of the model")
      ->expected(1)
      ->type_name("N");
  add_counts(*verb, "--steps", settings->steps, "Steps to measure")->expected(1)->type_name("N");
  verb->add_option("--schemes", settings->schemes, "Schemes to measure, with options; default all")
      ->type_name("A,B:KEY=VALUE,...");
  verb->add_option("--exchange", settings->exchange,
                   "Route of the gradients: auto, split, or server:S (the last S\n"
                   "ranks have no gradient)")
      ->type_name("KIND")
      ->capture_default_str();
  verb->add_option("--link", settings->link, "Link to emulate, by bandwidth and latency")
      ->type_name("100mbit,1ms");
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
