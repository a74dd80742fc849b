// train.cc: `thinwire train`: reads the flags, starts the workers or joins a job, trains.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "apps/train/engine.h"
#include "apps/train/launch.h"
#include "apps/train/settings.h"
#include "apps/train/trainer.h"
#include "apps/verb.h"
#include "thinwire/core/parallel.h"

namespace thinwire::apps {
namespace {

using namespace thinwire::train;

int threads_of(const Settings& settings, const Place& place) {
  if (settings.threads > 0) return settings.threads;
  return place.beside_others ? 1 : 0;
}

[[noreturn]] void give_up(const Settings& settings, const Place& place, const std::string& text,
                          int code) {
  if (settings.kind == Engine::mpi && place.world > 1) abort_mpi_engine(text);
  leave(place, text, code);
}

void work(const Settings& settings, const Place& place) {
  // Out here, since an error must not destroy them: that could wait for workers that are gone.
  std::unique_ptr<Group> group;
  std::unique_ptr<Trainer> trainer;
  try {
    const int threads = threads_of(settings, place);
    if (threads > 0) set_threads(threads);
    group = make_group(settings, place);
    trainer = std::make_unique<Trainer>(settings, *group, threads);
    trainer->run();
  } catch (const BadInput& error) {
    give_up(settings, place, error.what(), exit_bad_input);
  } catch (const std::exception& error) {
    give_up(settings, place, error.what(), exit_failure);
  }
}

void run(Settings& settings) {
  check(settings);
  const std::optional<Place> place = find_place(settings);
  if (place) {
    work(settings, *place);
  } else {
    launch(settings.processes());
  }
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
