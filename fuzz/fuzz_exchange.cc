// fuzz_exchange.cc: whole trainings derived from the input: any scheme and options, ranks as
// threads, awkward buckets, gradients that are ordinary, tiny, large or not finite, damaged frames,
// a rank that leaves, a resume, another number of workers. The laws hold, or an Error says why not.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>

#include "fuzz/exchange_plan.h"
#include "fuzz/fuzz.h"
#include "tests/exchange/forwarding.h"
#include "thinwire/exchange/stripe_state.h"
#include "thinwire/thinwire.h"

namespace thinwire::fuzz {
namespace {

// A hang must be a finding of the fuzzer, not an Error of the engine's own time limit.
const GroupOptions patience{.timeout = std::chrono::minutes(10)};

// Flips a bit of the next frame that arrives, once it is armed.
class BadLine final : public testing::Forwarding {
 public:
  using Forwarding::Forwarding;
  bool armed = false, hit = false;
  std::uint32_t at = 0;

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    if (!armed) return Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream);
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    flip(slot_bytes, slots, sizes);
    return {};
  }
  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    if (!armed) return Forwarding::all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream);
    Forwarding::all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream).wait();
    flip(slot_bytes, slots, sizes);
    return {};
  }

 private:
  void flip(std::size_t slot_bytes, Bytes slots, std::span<const std::size_t> sizes) {
    const std::size_t from = at % sizes.size();
    if (hit || sizes[from] == 0) return;
    slots[from * slot_bytes + at / 8 % sizes[from]] ^= static_cast<std::byte>(1u << at % 8);
    hit = true;
  }
};

// Loads matching entries and ignores the rest: another number of workers has other
// stripes and thresholds.
class FittingLoader final : public StateVisitor {
 public:
  explicit FittingLoader(const State& state) : state_(state) {}
  void tensor(const std::string& name, std::span<float> values, Share) override {
    const auto found = state_.find(name);
    if (found == state_.end() || found->second.values.size() != values.size()) return;
    std::copy(found->second.values.begin(), found->second.values.end(), values.begin());
  }
  void number(const std::string& name, double& value, Share) override {
    const auto found = state_.find(name);
    if (found != state_.end() && !found->second.is_tensor) value = found->second.number;
  }

 private:
  const State& state_;
};

State save(Exchange& exchange) {
  State state;
  StateSaver saver(state);
  exchange.visit_state(saver);
  return state;
}

StepResult take_step(Exchange& exchange, Model& model, std::uint32_t shuffle) {
  for (std::size_t i = 0; i < model.size(); ++i) {
    const std::size_t bucket = (i + shuffle) % model.size();
    exchange.submit(static_cast<std::uint16_t>(bucket), std::span(model[bucket]));
  }
  return exchange.finish();
}

// What one rank saw in a phase.
struct Record {
  std::vector<Model> averages, again;  // after each step; and after a resume
  std::vector<char> skipped;
  State state, state_again, after_error;
  std::string error;
  bool foreign = false;  // an exception other than Error
  bool damaged = false;  // it received a damaged frame
};

// The steps of a plan between two changes of the number of workers.
struct Phase {
  const Plan& plan;
  int ranks = 1;
  std::size_t first = 0, last = 0, resume_at = 0;
  bool fits = true;           // false: the states belong to another number of workers
  std::vector<State> states;  // initial states; empty at the start
};

void load(Exchange& exchange, const Phase& phase, const State& state) {
  StateLoader strict(state);
  FittingLoader fitting(state);
  exchange.visit_state(phase.fits ? static_cast<StateVisitor&>(strict) : fitting);
}

void resume(Group& group, const Phase& phase, const State& from, Record& record) {
  Exchange exchange(group, phase.plan.buckets, phase.plan.config, phase.plan.options);
  StateLoader loader(from);
  exchange.visit_state(loader);
  for (std::size_t step = phase.resume_at; step < phase.last; ++step) {
    record.again.push_back(gradient_of(phase.plan, step, group.rank()));
    take_step(exchange, record.again.back(), phase.plan.steps[step].seed);
  }
  record.state_again = save(exchange);
}

void work(Group& inner, const Phase& phase, Record& record) {
  BadLine group(inner);
  Exchange exchange(group, phase.plan.buckets, phase.plan.config, phase.plan.options);
  if (!phase.states.empty())
    load(exchange, phase, phase.states[static_cast<std::size_t>(group.rank())]);
  State halfway;
  try {
    for (std::size_t number = phase.first; number < phase.last; ++number) {
      if (number == phase.resume_at) halfway = save(exchange);
      const Step& step = phase.plan.steps[number];
      const bool faulty = step.rank % phase.ranks == group.rank();
      if (faulty && step.fault == Fault::leave) throw Error("this rank leaves");
      group.armed = faulty && step.fault == Fault::damage;
      group.at = step.seed;
      record.averages.push_back(gradient_of(phase.plan, number, group.rank()));
      const StepResult result = take_step(exchange, record.averages.back(),
                                          step.seed + static_cast<std::uint32_t>(group.rank()));
      record.skipped.push_back(result.skipped);
    }
  } catch (const Error&) {
    record.damaged = group.hit;
    record.after_error = save(exchange);
    throw;
  }
  record.damaged = group.hit;
  record.state = save(exchange);
  if (phase.resume_at < phase.last) resume(inner, phase, halfway, record);
}

// One record per rank. An Error ends the phase on all ranks.
std::vector<Record> run(const Phase& phase) {
  std::vector<Record> records(static_cast<std::size_t>(phase.ranks));
  const auto body = [&](Group& group) {
    Record& record = records[static_cast<std::size_t>(group.rank())];
    try {
      work(group, phase, record);
    } catch (const Error& error) {
      record.error = error.what();
      throw;
    } catch (...) {
      record.foreign = true;
      throw;
    }
  };
  try {
    run_local(phase.ranks, body, patience);
  } catch (...) {
    // Each rank's own error is in its record.
  }
  return records;
}

bool is_finite(const State& state) {
  return std::ranges::all_of(state, [](const auto& item) {
    const StateEntry& entry = item.second;
    return std::isfinite(entry.number) &&
           std::ranges::all_of(entry.values, [](float x) { return std::isfinite(x); });
  });
}

bool is_finite(const Model& model) {
  return std::ranges::all_of(model, [](const auto& values) {
    return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
  });
}

bool is_zero(const Model& model) {
  return std::ranges::all_of(model, [](const auto& values) {
    return std::ranges::all_of(values, [](float x) { return x == 0; });
  });
}

bool same_bits(const Model& a, const Model& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
  });
}

// -- the laws

// Damage is an error where it arrives. Every error is an Error, and leaves state that can be saved.
void check_errors(const Phase& phase, const std::vector<Record>& records) {
  bool faulty = false;
  for (std::size_t step = phase.first; step < phase.last; ++step)
    faulty = faulty || phase.plan.steps[step].fault != Fault::none;
  for (const Record& record : records) {
    require(!record.foreign, "what is thrown is an Error");
    require(!record.damaged || !record.error.empty(), "a damaged frame is an error");
    require(faulty || record.error.empty() || record.averages.empty(), "no error without a fault");
    require(is_finite(record.after_error), "state after an error is finite");
  }
}

void check_step(const Phase& phase, const std::vector<Record>& records, std::size_t at, bool wild) {
  bool bad = false;
  for (int rank = 0; rank < workers_of(phase.plan, phase.ranks); ++rank)
    bad = bad || !is_finite(gradient_of(phase.plan, phase.first + at, rank));
  for (const Record& record : records) {
    require(record.skipped[at] == records[0].skipped[at], "a step is void on all ranks or on none");
    require(same_bits(record.averages[at], records[0].averages[at]), "replicas have the same bits");
  }
  const Model& average = records[0].averages[at];
  require(is_finite(average), "averages are finite");
  require(!bad || records[0].skipped[at], "a gradient that is not finite voids the step");
  require(bad || wild || !records[0].skipped[at], "an ordinary step takes place");
  require(!records[0].skipped[at] || is_zero(average), "a void step moves nothing");
}

void check_states(const Phase& phase, const std::vector<Record>& records) {
  for (const Record& record : records) {
    require(is_finite(record.state), "state is finite");
    for (const auto& [name, entry] : record.state) {
      if (entry.share != Share::replicated) continue;
      const auto first = records[0].state.find(name);
      require(first != records[0].state.end() && first->second == entry,
              "what is replicated is the same on all ranks");
    }
    if (phase.resume_at >= phase.last) continue;
    for (std::size_t i = 0; i < record.again.size(); ++i)
      require(same_bits(record.again[i], record.averages[phase.resume_at - phase.first + i]),
              "a resumed run has the same bits");
    require(serialize(record.state_again) == serialize(record.state), "... and the same state");
  }
}

// Sent plus kept equals given, over all phases.
class Books {
 public:
  explicit Books(const Plan& plan) : plan_(plan) {
    for (const Bucket& bucket : plan.buckets) rows_.emplace_back(bucket.elements());
    largest_.resize(plan.buckets.size());
  }

  void enter(const Phase& phase, const std::vector<Record>& records) {
    const int workers = workers_of(plan_, phase.ranks);
    for (std::size_t at = 0; at < records[0].averages.size(); ++at) {
      for (int rank = 0; rank < workers; ++rank)
        take_in(gradient_of(plan_, phase.first + at, rank), records[0].skipped[at] != 0);
      give_out(records[0].averages[at], workers);
    }
  }

  void check(const std::vector<State>& states, int workers) {
    std::vector<std::vector<double>> kept;
    for (const auto& row : rows_) kept.emplace_back(row.size());
    for (State state : states) {
      fold_owned(state, plan_.buckets, workers);
      for (std::size_t b = 0; b < kept.size(); ++b) {
        for (const Parameter& parameter : plan_.buckets[b].parameters) {
          const auto found = state.find(parameter.name + "/v");
          if (found == state.end()) continue;  // a server without residuals
          for (std::size_t i = 0; i < parameter.count; ++i) {
            const auto value = static_cast<double>(found->second.values[i]);
            kept[b][parameter.offset + i] += value;
            largest_[b] = std::max(largest_[b], std::fabs(value));
          }
        }
      }
    }
    for (std::size_t b = 0; b < kept.size(); ++b) {
      const double rounding = 1e-5 * (1 + steps_) * largest_[b] + 1e-36;
      for (std::size_t i = 0; i < kept[b].size(); ++i) {
        const Row& row = rows_[b][i];
        require(std::fabs(row.in - row.out - kept[b][i]) <= rounding,
                "sent plus kept is what came in");
      }
    }
  }

 private:
  struct Row {
    double in = 0, out = 0;
  };

  // A skipped step leaves nothing on a rank whose gradient was not finite; others keep theirs.
  void take_in(const Model& gradient, bool skipped) {
    const bool kept = !skipped || is_finite(gradient);
    for (std::size_t b = 0; b < gradient.size(); ++b) {
      for (std::size_t i = 0; i < gradient[b].size(); ++i) {
        const float g = gradient[b][i];
        if (kept) rows_[b][i].in += static_cast<double>(g);
        if (std::isfinite(g))
          largest_[b] = std::max(largest_[b], std::fabs(static_cast<double>(g)));
      }
    }
  }

  void give_out(const Model& average, int workers) {
    ++steps_;
    for (std::size_t b = 0; b < average.size(); ++b) {
      for (std::size_t i = 0; i < average[b].size(); ++i) {
        const double given = workers * static_cast<double>(average[b][i]);
        rows_[b][i].out += given;
        largest_[b] = std::max(largest_[b], std::fabs(given));
      }
    }
  }

  const Plan& plan_;
  std::vector<std::vector<Row>> rows_;
  std::vector<double> largest_;  // per bucket: quantisers round by the largest of a group
  double steps_ = 0;
};

// States for `ranks` other ranks: the old ranks' states are distributed over the new workers, so
// that every sum is preserved.
std::vector<State> reshard(const Plan& plan, std::vector<State> old, int ranks) {
  const int before = static_cast<int>(old.size());
  for (State& state : old) fold_owned(state, plan.buckets, workers_of(plan, before));
  const auto workers = static_cast<std::size_t>(workers_of(plan, ranks));
  std::vector<State> states(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < old.size(); ++i) {
    for (const auto& [name, entry] : old[i]) {
      if (entry.share == Share::replicated) {
        for (State& state : states) state.emplace(name, entry);
      } else if (entry.share == Share::summed) {
        StateEntry& to = states[i % workers][name];
        std::vector<float> values = std::move(to.values);
        add_part(values, 0, entry.values, 1);
        to = {Share::summed, std::move(values), 0, true};
      }
    }
  }
  return states;
}

void check_plan(const Plan& plan) {
  Books books(plan);
  bool wild = false;
  Phase phase{.plan = plan, .ranks = plan.ranks, .states = {}};
  for (std::size_t first = 0; first < plan.steps.size(); first = phase.last) {
    const int ranks = first == 0 ? plan.ranks : plan.later_ranks;
    if (first > 0) phase.states = reshard(plan, std::move(phase.states), ranks);
    phase.fits = first == 0;
    phase.ranks = ranks;
    phase.first = first;
    phase.last = first == 0 ? plan.change_at : plan.steps.size();
    phase.resume_at = std::max(first, plan.resume_at);
    const std::vector<Record> records = run(phase);
    check_errors(phase, records);
    const auto failed = [](const Record& record) { return !record.error.empty(); };
    if (std::ranges::any_of(records, failed)) return;
    for (std::size_t at = 0; at < records[0].averages.size(); ++at) {
      wild = wild || plan.steps[first + at].content == Content::large;
      check_step(phase, records, at, wild);
    }
    check_states(phase, records);
    phase.states.clear();
    for (const Record& record : records) phase.states.push_back(record.state);
    books.enter(phase, records);
    if (plan.conserves) books.check(phase.states, workers_of(plan, ranks));
  }
}

}  // namespace
}  // namespace thinwire::fuzz

// Input: see read_plan().
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  try {
    fuzz::check_plan(fuzz::read_plan({data, size}));
  } catch (const Error&) {
    // Rejected as a whole: scheme and exchange clash.
  }
  return 0;
}
