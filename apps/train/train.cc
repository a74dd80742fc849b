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
  work_or_launch(settings, [&](Group& group, const train::Place& place, const Hardware& hardware) {
    return std::make_unique<Trainer>(settings, group, place, hardware);
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
           "\nCtrl-C with --save finishes the step, writes the checkpoint and exits with code "
           "130.\n"
           "\nExamples:\n"
           "  Four workers on this machine, over an emulated link:\n"
           "    thinwire train --workers 4 --scheme dgc:density=0.001,warmup=100 --link "
           "100mbit,1ms\n"
           "  A language model with checkpoints, and a run that resumes from the last one:\n"
           "    thinwire train --model lstm --data stdlib --steps 2000 --save state --save-every "
           "500\n"
           "    thinwire train --model lstm --data stdlib --steps 2000 --resume state\n"
           "  Delayed averaging over a long link:\n"
           "    thinwire train --workers 4 --delay 20 --lr 0.05 --link 1gbit,50ms\n"
           "  What 64 workers would train, in one process, and an estimate of their time:\n"
           "    thinwire train --virtual 64 --batch 8 --scheme onebit --link 1gbit,1ms\n"
           "  As part of a job:\n"
           "    torchrun --nproc-per-node 4 --no-python thinwire train --scheme powersgd\n"
           "    mpirun -n 4 thinwire train --engine mpi --scheme topk:density=0.01\n";
  });
  verb->callback([settings] { run(*settings); });
}

}  // namespace thinwire::apps
