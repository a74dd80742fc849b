// place.cc: reads our rank from the environment, under the names that launchers use.
// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "apps/train/launch.h"
#include "apps/verb.h"

namespace thinwire::train {
namespace {

using apps::BadInput;

struct Launcher {
  const char* name;
  const char* rank;
  const char* world;
  bool lone_is_none;  // a job of one does not count: shells inside an allocation have these too
};
constexpr Launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", false},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
    {"mpirun", "PMI_RANK", "PMI_SIZE", true},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", true},
};

int number(const char* name, int from, int to) {
  const char* const text = std::getenv(name);
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error == std::errc{} && rest == end && value >= from && value <= to) return value;
  throw BadInput(std::string("environment: ") + name + ": expected a number from " +
                 std::to_string(from) + " to " + std::to_string(to) + ", got '" + text + "'");
}

// If no launcher says it, assume that ranks count through one machine.
int local_rank(int rank) {
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (std::getenv(name) != nullptr) return number(name, 0, 1 << 20);
  return rank;
}

// Gloo needs to know where the workers meet. torchrun says so; other launchers leave it
// to the user.
void find_master(const Launcher& launcher, Place& place) {
  const char* const host = std::getenv("MASTER_ADDR");
  if (host == nullptr || std::getenv("MASTER_PORT") == nullptr) {
    const std::string_view name = launcher.name;
    throw BadInput(std::string("joining a job of ") + launcher.name +
                   ": MASTER_ADDR and MASTER_PORT must say where rank 0 listens" +
                   (name == "mpirun" ? ", or use --engine mpi"
                    : name == "Slurm"
                        ? ", as in: export MASTER_ADDR=$(scontrol show hostnames | head -n 1) "
                          "MASTER_PORT=29500"
                        : ""));
  }
  place.host = host;
  place.port = static_cast<std::uint16_t>(number("MASTER_PORT", 1, 65535));
}

bool on_this_machine(int world) {
  if (std::getenv("LOCAL_WORLD_SIZE") != nullptr) return number("LOCAL_WORLD_SIZE", 1, 1 << 20) > 1;
  if (std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE") != nullptr)
    return number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, 1 << 20) > 1;
  return world > 1;
}

// A file descriptor inherited from launch(), or -1. Our own children must not see it.
int inherited(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return -1;
  const int descriptor = std::atoi(text);
  unsetenv(name);
  return descriptor;
}

Place join(const Launcher& launcher, const Settings& settings) {
  if (settings.virtual_workers > 0) {
    throw BadInput("--virtual " + std::to_string(settings.virtual_workers) +
                   ": all virtual workers are in one process, but this one belongs to a job of " +
                   launcher.name + "; start it outside, or leave --virtual out");
  }
  Place place;
  place.world = number(launcher.world, 1, 1 << 20);
  place.rank = number(launcher.rank, 0, place.world - 1);
  place.local_rank = local_rank(place.rank);
  place.beside_others = on_this_machine(place.world);
  const int workers = settings.meeting.workers(place.world);
  if (workers < 1) {
    throw BadInput("--exchange " + settings.exchange + ": the job of " + launcher.name +
                   " that this process belongs to has " + std::to_string(place.world) +
                   " processes, so no worker would be left");
  }
  if (settings.workers != 0 && settings.workers != workers) {
    throw BadInput("--workers " + std::to_string(settings.workers) + ": the job of " +
                   launcher.name + " that this process belongs to has " + std::to_string(workers) +
                   " workers; leave --workers out");
  }
  if (settings.kind != Engine::mpi && place.world > 1) find_master(launcher, place);
  place.report = inherited("THINWIRE_WORKER");
  place.listener = inherited("THINWIRE_LISTENER");
  return place;
}

}  // namespace

std::optional<Place> find_place(const Settings& settings) {
  for (const Launcher& launcher : launchers) {
    if (std::getenv(launcher.rank) == nullptr || std::getenv(launcher.world) == nullptr) continue;
    if (launcher.lone_is_none && number(launcher.world, 1, 1 << 20) == 1) continue;
    return join(launcher, settings);
  }
  if (settings.kind == Engine::mpi && settings.processes() > 1) {
    throw BadInput("--engine mpi: start the workers with mpirun -n " +
                   std::to_string(settings.processes()) + " thinwire train --engine mpi ...");
  }
  if (settings.processes() > 1) return std::nullopt;
  return Place{};
}

}  // namespace thinwire::train
