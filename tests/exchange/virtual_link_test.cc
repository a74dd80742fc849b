// virtual_link_test.cc: the time of a step over a link is the one that Exchanges with threads take.
// A clock per rank stands for the emulated link (comm/link_group.cc): nothing here takes time.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/exchange/forwarding.h"
#include "tests/exchange/virtual_laws.h"
#include "thinwire/comm/cost.h"

namespace thinwire::virtual_link {

using namespace testing;

// Collectives are carried out at once; waiting for one moves the clock to its end on the link.
class Clocked final : public Forwarding {
 public:
  Clocked(Group& inner, const Link& link) : Forwarding(inner), link_(link) {}

  void start() { clock_ = free_ = 0; }
  double now() const { return clock_; }

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    return pass(Forwarding::all_reduce(data, dtype, op, stream));
  }
  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    return pass(Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream));
  }
  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    return pass(Forwarding::all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream));
  }

 private:
  class Work final : public Pending::Work {
   public:
    Work(Clocked& group, const Cost& cost, double end) : group_(group), cost_(cost), end_(end) {}
    void wait() override { group_.clock_ = std::max(group_.clock_, end_); }
    bool done() override { return false; }
    Cost cost() const override { return cost_; }

   private:
    Clocked& group_;
    Cost cost_;
    double end_;
  };

  Pending pass(Pending inner) {
    inner.wait();
    const Cost cost = inner.cost();
    const double begin = std::max(free_, clock_);
    free_ = begin + link_.wire_seconds(cost.path);
    return Pending(std::make_unique<Work>(*this, cost, begin + link_.seconds(cost)));
  }

  Link link_;
  double clock_ = 0, free_ = 0;
};

// The slowest rank's time of the last of three steps.
double seconds_with_threads(const VirtualCase& of, const Link& link) {
  std::vector<double> seconds(static_cast<std::size_t>(of.ranks()));
  run_local(of.ranks(), [&](Group& group) {
    Clocked clocked(group, link);
    Exchange exchange(clocked, of.buckets, of.config, of.options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      if (step > 0) clocked.start();
      Narrow model = narrowed(of.buckets, awkward_gradient(of, group.rank(), step));
      step_of(exchange, of.buckets, model);
    }
    seconds[static_cast<std::size_t>(group.rank())] = clocked.now();
  });
  return *std::ranges::max_element(seconds);
}

double seconds_of_ranks(const VirtualCase& of, const Link& link) {
  VirtualExchange exchange(of.workers, of.buckets, of.config, of.options);
  EXPECT_EQ(exchange.seconds_over(link), 0);
  for (std::uint64_t step = 0; step < 3; ++step) {
    std::vector<Narrow> models = of_all_workers(of, awkward_gradient, step);
    step_of(exchange, of.buckets, models, 0);
  }
  return exchange.seconds_over(link);
}

// Ten buckets: more than are in flight at once.
std::vector<Bucket> many_buckets() {
  std::vector<Bucket> buckets = awkward_buckets();
  for (std::uint16_t b = 4; b < 10; ++b)
    buckets.push_back(Bucket{b, {{"w" + std::to_string(b), 0, 30000, {150, 200}}}});
  return buckets;
}

TEST(VirtualLink, StepsTakeTheTimeOfThreads) {
  for (const char* text : {"dense", "bf16", "dgc:density=0.05", "onebit", "qsgd", "powersgd", "csc",
                           "terngrad:travel=sum"}) {
    for (const char* name : {"100mbit,20ms", "inf,5ms", "10mbit"}) {
      const Link link = Link::parse(name);
      for (const int workers : {1, 2, 4}) {
        VirtualCase of{
            .workers = workers, .config = Config::parse(text), .buckets = many_buckets()};
        EXPECT_NEAR(seconds_of_ranks(of, link), seconds_with_threads(of, link), 1e-12)
            << of.text() << " " << name;
        of.options.fuse_bytes = 50000;
        EXPECT_NEAR(seconds_of_ranks(of, link), seconds_with_threads(of, link), 1e-12)
            << of.text() << " " << name;
      }
    }
  }
}

// Of an all-to-all a rank prices its own pieces, a virtual exchange those of the slowest rank,
// which the others wait for.
TEST(VirtualLink, StripesTakeTheTimeOfTheSlowestRank) {
  const Link link = Link::parse("100mbit,1ms");
  for (const char* kind : {"split", "server:1"}) {
    for (const char* text : {"onebit", "dgc:density=0.05"}) {
      VirtualCase of{.workers = 3, .config = Config::parse(text), .buckets = many_buckets()};
      of.options.kind = ExchangeKind::parse(kind);
      const double threads = seconds_with_threads(of, link), told = seconds_of_ranks(of, link);
      EXPECT_GE(told, threads * (1 - 1e-12)) << of.text();
      EXPECT_LE(told, threads * 1.05) << of.text();
    }
  }
}

TEST(VirtualLink, OneCollectiveTakesItsPrice) {
  const std::vector<Bucket> one = {Bucket::single(0, "w", 100000)};
  const Link link = Link::parse("100mbit,3ms");
  VirtualExchange exchange(3, one, Config::parse("fp16"));
  Model models(3, std::vector<float>(100000, 1.0f));
  for (int worker = 0; worker < 3; ++worker)
    exchange.submit(worker, 0, models[static_cast<std::size_t>(worker)]);
  exchange.finish();
  const Call call{.kind = Kind::all_reduce, .bytes = 200000, .dtype = DType::f16};
  EXPECT_DOUBLE_EQ(exchange.seconds_over(link), link.seconds(c10d_cost(call, {}, 0, 3)));
  EXPECT_GT(exchange.seconds_over(link), 2 * 200000 * 2 / 3 / 12.5e6 + 2 * 3e-3);
  const std::string text =
      error_of([&] { (void)exchange.seconds_over(Link::parse("1gbit,1ms,jitter=1ms")); });
  EXPECT_NE(text.find("of a link without jitter and outages"), text.npos) << text;
}

}  // namespace thinwire::virtual_link
