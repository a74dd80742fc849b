// engine.cc: makes a group from settings and place.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/engine.h"

#include <algorithm>

#include "apps/train/device.h"
#include "thinwire/comm/c10d/c10d.h"
#include "thinwire/comm/link.h"
#include "thinwire/comm/local.h"

namespace thinwire::train {
namespace {

Rendezvous meeting_of(const Place& place) {
  return {place.host, place.port, place.rank, place.world, place.listener};
}

bool between_gpus(const Settings& settings) {
  return settings.kind == Engine::nccl && !settings.emulated && seat_of(settings) == Seat::model;
}

std::unique_ptr<Group> make_plain(const Settings& settings, const Place& place, int gpu) {
  const GroupOptions options = options_of(settings);
  if (settings.kind == Engine::mpi) return make_mpi_engine(options);
  if (place.world == 1) return std::move(make_local_groups(1, options).front());
  const Rendezvous at = meeting_of(place);
  const bool staged = settings.kind == Engine::nccl && !between_gpus(settings);
  return staged ? make_nccl_group(at, gpu, options) : make_gloo_group(at, options);
}

}  // namespace

GroupOptions options_of(const Settings& settings) {
  GroupOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(settings.timeout * 1e3));
  return options;
}

std::unique_ptr<Group> make_group(const Settings& settings, const Place& place, int gpu) {
  std::unique_ptr<Group> group = make_plain(settings, place, gpu);
  const bool waits = settings.emulated && settings.virtual_workers == 0;
  return waits ? emulate_link(std::move(group), *settings.emulated) : std::move(group);
}

std::unique_ptr<StreamGroup> make_data_group(const Settings& settings, const Place& place,
                                             int gpu) {
  const Device device{settings.cuda ? Device::Kind::cuda : Device::Kind::cpu, std::max(gpu, 0)};
  if (place.world == 1) return make_solo_stream_group(device);
  if (!between_gpus(settings)) return nullptr;
  return make_nccl_stream_group(meeting_of(place), gpu, options_of(settings));
}

void add(std::vector<double>& sums, const std::vector<double>& values) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
}

std::vector<double> sum_over(Group& group, const std::vector<double>& values) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const ConstBytes mine = std::as_bytes(std::span(values));
  std::vector<double> all(ranks * values.size());
  std::vector<std::size_t> sizes(ranks);
  group.all_gather(mine, mine.size(), std::as_writable_bytes(std::span(all)), sizes, {}).wait();
  std::vector<double> sums(values.size());
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % values.size()] += all[i];
  return sums;
}

}  // namespace thinwire::train
