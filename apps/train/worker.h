// worker.h: this process as one worker of its job, whatever its task. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "apps/train/device.h"
#include "apps/train/engine.h"
#include "apps/train/launch.h"
#include "apps/train/settings.h"
#include "apps/train/stop.h"
#include "apps/verb.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"

namespace thinwire::train {

inline int threads_of(const Settings& settings, const Place& place) {
  if (settings.threads > 0) return settings.threads;
  // Virtual workers have the bits of --workers, which share a machine.
  const int virtual_ranks =
      settings.virtual_workers > 0 ? settings.virtual_workers + settings.meeting.servers : 0;
  return place.beside_others || virtual_ranks > 1 ? 1 : 0;
}

[[noreturn]] inline void give_up(const Settings& settings, const Place& place,
                                 const std::string& text, int code) {
  if (settings.kind == Engine::mpi && place.world > 1) abort_mpi_engine(text);
  leave(place, text, code);
}

// Calls make(group, place, hardware), then run(), for every worker of the job, each in a thread.
template <typename Make>
void work_in_threads(const Settings& settings, const Hardware& hardware, const Make& make) {
  std::vector<std::exception_ptr> refusals(static_cast<std::size_t>(settings.virtual_workers));
  const auto work = [&](Group& group) {
    Place place;
    place.rank = group.rank();
    place.world = group.size();
    try {
      make(group, place, hardware)->run();
    } catch (const apps::BadInput&) {
      refusals[static_cast<std::size_t>(place.rank)] = std::current_exception();
      throw;
    }
  };
  try {
    run_local(settings.virtual_workers, work, options_of(settings));
  } catch (const Error&) {  // others may only know that this rank is gone
    for (const std::exception_ptr& refusal : refusals)
      if (refusal) std::rethrow_exception(refusal);
    throw;
  }
}

// The same for this process as one worker, or as a crew of virtual ones.
template <typename Make>
void work(const Settings& settings, const Place& place, const Make& make) {
  // Declared outside, because an error must not destroy them: that could wait for workers
  // that are gone.
  std::unique_ptr<Group> group;
  decltype(make(*group, place, Hardware{})) task;
  try {
    const Hardware hardware{threads_of(settings, place), gpu_of(settings, place)};
    if (hardware.threads > 0) set_threads(hardware.threads);
    if (settings.in_threads()) return work_in_threads(settings, hardware, make);
    group = make_group(settings, place, hardware.gpu);
    task = make(*group, place, hardware);
    task->run();
  } catch (const apps::Interrupted& interrupted) {
    task.reset();  // all ranks have finished
    group.reset();
    if (place.rank == 0) tell(place, interrupted.what(), apps::exit_interrupted);
    if (settings.kind == Engine::mpi) end_mpi_engine();  // after rank 0 has printed
    leave(place, "", apps::exit_interrupted);
  } catch (const apps::BadInput& error) {
    give_up(settings, place, error.what(), apps::exit_bad_input);
  } catch (const std::exception& error) {
    give_up(settings, place, error.what(), apps::exit_failure);
  }
}

// Runs the task if this process is a worker. Otherwise starts the workers and waits for them.
template <typename Make>
void work_or_launch(const Settings& settings, const Make& make) {
  const std::optional<Place> place = find_place(settings);
  if (place) {
    work(settings, *place, make);
  } else {
    check_gpus(settings);
    launch(settings.processes(), stops_at_a_step(settings));
  }
}

}  // namespace thinwire::train
