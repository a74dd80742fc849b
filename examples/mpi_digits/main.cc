// main.cc: trains the digits over MPI processes, once per scheme, and compares them in one table.
//
//     mpirun -n 4 mpi_digits --scheme dense dgc:density=0.001,warmup=20
//
// It uses thinwire in three places: main() makes the group of workers, Training holds an exchange
// for its buckets, and take_step() submits gradients and gets averages back.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "data.h"
#include "model.h"
#include "optimizer.h"
#include "settings.h"
#include "table.h"
#include "thinwire/comm/mpi/mpi.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/thinwire.h"

namespace digits {
namespace {

constexpr std::uint64_t check_every = 100;

// One worker's part of one training.
class Training {
 public:
  Training(thinwire::Group& group, const Split& data, const Settings& settings,
           const std::string& scheme)
      : group_(group),
        data_(data),
        settings_(settings),
        config_(thinwire::Config::parse(scheme)),
        network_(settings.hidden, settings.seed),
        optimizer_(config_, settings.decay, network_.weights().size()),
        exchange_(group, network_.buckets(), config_),
        steps_(settings.steps_for(data.train.size(), static_cast<std::size_t>(group.size()))) {
    row_.scheme = scheme;
  }

  Row run() {
    if (!settings_.resume.empty()) resume();
    const std::uint64_t end = settings_.stop ? std::min(settings_.stop, steps_) : steps_;
    const std::uint64_t half = (step_ + end) / 2;
    while (step_ < end) {
      if (step_ == half) row_.at_half = exchange_.report();
      take_step();
      if (step_ % check_every == 0) check_replicas();
    }
    row_.report = exchange_.report();
    check_replicas();
    if (!settings_.save.empty()) save();
    row_.accuracy = network_.accuracy(data_.test);
    row_.checksum = thinwire::crc32c(std::as_bytes(network_.weights()));
    return row_;
  }

 private:
  // All that a training loop sees of thinwire: buckets are sent while backward still works on the
  // layers below, and return as the average over the workers.
  void take_step() {
    const auto start = std::chrono::steady_clock::now();
    const Images batch = next_batch();
    network_.forward(batch.values);
    network_.backward(batch, [this](std::uint16_t bucket) {
      exchange_.submit(bucket, network_.gradient(bucket));
    });
    const thinwire::StepResult result = exchange_.finish();
    if (!result.skipped) {
      const float rate = rate_at(step_, steps_, settings_.rate);
      optimizer_.step(rate, network_.gradients(), network_.weights());
    }
    ++step_;
    ++row_.steps;
    row_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Images next_batch() const {
    return batch(data_.train, static_cast<std::size_t>(group_.rank()),
                 static_cast<std::size_t>(group_.size()), settings_.batch, settings_.seed, step_);
  }

  void check_replicas() {
    thinwire::check_replicas(group_, network_.replicas());
    ++row_.checks;
  }

  // Everything that later steps depend on. Saving and loading both use it.
  void visit_state(thinwire::StateVisitor& visitor) {
    expect_same(visitor, "workers", group_.size());
    expect_same(visitor, "seed", static_cast<double>(settings_.seed));
    expect_same(visitor, "batch", static_cast<double>(settings_.batch));
    expect_same(visitor, "steps", static_cast<double>(steps_));
    auto step = static_cast<double>(step_);
    visitor.number("training/step", step, thinwire::Share::replicated);
    step_ = static_cast<std::uint64_t>(step);
    visitor.tensor("training/weights", network_.weights(), thinwire::Share::replicated);
    optimizer_.visit_state(visitor);
    exchange_.visit_state(visitor);
  }

  static void expect_same(thinwire::StateVisitor& visitor, const std::string& name, double mine) {
    double saved = mine;
    visitor.number("training/" + name, saved, thinwire::Share::replicated);
    if (saved != mine) {
      thinwire::fail("--resume: the saved run has --", name, " ", saved, ", but this one has ",
                     mine);
    }
  }

  std::string state_file(const std::string& name) const {
    return name + ".rank" + std::to_string(group_.rank());
  }
  void save() {
    thinwire::State state;
    thinwire::StateSaver saver(state);
    visit_state(saver);
    thinwire::save_file(state_file(settings_.save), state);
  }
  void resume() {
    const thinwire::State state = thinwire::load_file(state_file(settings_.resume));
    thinwire::StateLoader loader(state);
    visit_state(loader);
  }

  thinwire::Group& group_;
  const Split& data_;
  const Settings& settings_;
  thinwire::Config config_;
  Network network_;
  Optimizer optimizer_;
  thinwire::Exchange exchange_;
  std::uint64_t steps_, step_ = 0;
  Row row_;
};

void compare(thinwire::Group& group, const Settings& settings) {
  const Split data = split(read_and_share(group, settings.data));
  const bool speaker = group.rank() == 0;
  if (speaker) {
    const std::size_t parameters = Network(settings.hidden, 0).weights().size();
    print_head(group.name(), group.size(), parameters);
  }
  std::vector<Row> rows;
  for (const std::string& scheme : settings.schemes) {
    rows.push_back(Training(group, data, settings, scheme).run());
    if (speaker) print(rows.back());
  }
  if (speaker) print_verdict(rows);
  if (speaker && !settings.json.empty()) {
    write_json(settings.json, group.name(), group.size(), rows);
  }
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  return thinwire::run_mpi(argc, argv, [&](thinwire::Group& group) {
    digits::Settings settings;
    const bool speaker = group.rank() == 0;
    if (const auto code = digits::parse(argc, argv, speaker, settings)) return *code;
    if (settings.link.empty()) {
      digits::compare(group, settings);
    } else {
      const auto link = thinwire::Link::parse(settings.link);
      const auto slow = thinwire::emulate_link(group, link);
      digits::compare(*slow, settings);
    }
    return 0;
  });
}
