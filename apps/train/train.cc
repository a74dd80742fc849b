// train.cc: `thinwire train`: reads the flags, starts the workers or joins a job, trains.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "apps/train/settings.h"
#include "apps/train/trainer.h"
#include "apps/train/worker.h"
#include "apps/verb.h"

namespace thinwire::apps {
namespace {

using namespace thinwire::train;

void run(Settings& settings) {
  check(settings);
  work_or_launch(settings, [&](Group& group, const Place&, const Hardware& hardware) {
    return std::make_unique<Trainer>(settings, group, hardware);
  });
}

}  // namespace

void add_train(CLI::App& parent) {
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb = add_verb(
      parent, "train",
      "Train a network on several workers that exchange compressed gradients. Starts its own\n"
      "workers, or joins the job of torchrun, mpirun or Slurm that it was started in",
      "", settings->json);
  describe(*verb, *settings);
  verb->footer([] {
    return zoo_help() +
           "\nExample:\n  thinwire train --model mlp --data digits --workers 4 "
           "--scheme dgc:density=0.001,warmup=100\n";
  });
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
