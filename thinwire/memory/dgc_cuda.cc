// dgc_cuda.cc: device memory for a bucket's momentum, residual and survivors, and its state.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/dgc_cuda.h"

#include <algorithm>
#include <string>

#include "thinwire/core/tile.h"

namespace thinwire {
namespace {

// Room beyond twice what a step may send, for the steps in which too many pass.
constexpr std::size_t spare_entries = std::size_t{1} << 16;

SurvivorArrays arrays_in(const Buffer& buffer, std::size_t entries, bool velocity) {
  auto* const start = buffer.as<float>();
  return {buffer.as<std::uint32_t>(), start + entries, velocity ? start + 2 * entries : nullptr};
}

Buffer survivor_buffer(std::size_t entries, bool velocity, Device device) {
  return {Place::cuda, entries * sizeof(float) * (velocity ? 3 : 2), device};
}

template <typename T>
Buffer uploaded(const std::vector<T>& values, Device device) {
  Buffer buffer(Place::cuda, values.size() * sizeof(T), device);
  copy_bytes(buffer.data(), values.data(), buffer.size(), {});
  synchronize({});
  return buffer;
}

}  // namespace

DgcCudaMemory::DgcCudaMemory(const Bucket& bucket, const DgcMemoryOptions& options, Device device)
    : bucket_(bucket), options_(options), where_(device) {
  const std::size_t elements = bucket.elements();
  if (options.per_layer) {
    for (const Parameter& parameter : bucket.parameters)
      spans_.push_back({parameter.offset, parameter.count});
  } else {
    spans_.push_back({0, elements});
  }

  std::vector<DgcTile> tiles;
  std::vector<std::uint32_t> tile_at(elements / tile_elements + 2);
  for (std::size_t s = 0; s < spans_.size(); ++s) {
    DgcSegment segment;
    segment.first_tile = static_cast<std::uint32_t>(tiles.size());
    const std::size_t end = spans_[s].first + spans_[s].count;
    for (std::size_t at = spans_[s].first; at < end;) {
      const std::size_t next = std::min(end, (at / tile_elements + 1) * tile_elements);
      if (at % tile_elements == 0)
        tile_at[at / tile_elements] = static_cast<std::uint32_t>(tiles.size());
      tiles.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint16_t>(next - at), 0,
                       static_cast<std::uint32_t>(s)});
      at = next;
    }
    segment.tiles = static_cast<std::uint32_t>(tiles.size()) - segment.first_tile;
    segments_.push_back(segment);
  }
  // Behind the last element.
  for (std::size_t k = (elements + tile_elements - 1) / tile_elements; k < tile_at.size(); ++k)
    tile_at[k] = static_cast<std::uint32_t>(tiles.size());

  tiles_ = uploaded(tiles, device);
  tile_at_ = uploaded(tile_at, device);
  const auto room = [device](std::size_t count, std::size_t size) {
    return Buffer(Place::cuda, count * size, device);
  };
  segment_memory_ = room(segments_.size(), sizeof(DgcSegment));
  table_ = room(tiles.size(), sizeof(TileRange));
  offset_ = room(tiles.size(), sizeof(std::uint32_t));
  ties_ = room(tiles.size(), sizeof(std::uint32_t));
  histogram_ = room(dgc_histogram_entries, sizeof(std::uint32_t));
  counters_ = room(1, sizeof(DgcCounters));
  scale_ = uploaded(std::vector<float>{1.0f}, device);
  if (has_momentum(options.accumulate)) u_ = room(elements, sizeof(float));
  if (has_residual(options.accumulate)) v_ = room(elements, sizeof(float));

  on_.accumulate = options.accumulate;
  on_.momentum = options.momentum;
  on_.exact = options.exact;
  on_.mask = options.mask;
  on_.tile_count = static_cast<std::uint32_t>(tiles.size());
  on_.segment_count = static_cast<std::uint32_t>(segments_.size());
  on_.elements = static_cast<std::uint32_t>(elements);
  on_.tiles = tiles_.as<DgcTile>();
  on_.segments = segment_memory_.as<DgcSegment>();
  on_.table = table_.as<TileRange>();
  on_.offset = offset_.as<std::uint32_t>();
  on_.ties = ties_.as<std::uint32_t>();
  on_.histogram = histogram_.as<std::uint32_t>();
  on_.counters = counters_.as<DgcCounters>();
  on_.scale = scale_.as<float>();
  on_.u = u_.as<float>();
  on_.v = v_.as<float>();
}

void DgcCudaMemory::prepare(double density, Stream stream) {
  if (density == density_) return;
  density_ = density;
  for (DgcSegment& segment : segments_) segment.threshold.value = 0;
  const std::size_t most_now = most_survivors(bucket_, options_, density);
  const std::size_t capacity =
      std::min<std::size_t>(bucket_.elements(), 2 * most_now + spare_entries);
  const bool velocity = has_momentum(options_.accumulate);
  // Work on the old buffers may still run.
  synchronize(stream);
  pool_ = survivor_buffer(capacity + most_now, velocity, where_);
  ordered_ = survivor_buffer(most_now, velocity, where_);
  on_.capacity = static_cast<std::uint32_t>(capacity);
  on_.pool = arrays_in(pool_, capacity + most_now, velocity);
  on_.ordered = arrays_in(ordered_, most_now, velocity);
  zero_bytes(table_.data(), table_.size(), stream);
  upload_segments(stream);
}

void DgcCudaMemory::upload_segments(Stream stream) {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Quota quota = Quota::of(spans_[i].count, density_);
    segments_[i].wanted = static_cast<std::uint32_t>(quota.wanted);
    segments_[i].most = static_cast<std::uint32_t>(options_.exact ? quota.wanted : quota.most);
  }
  copy_bytes(on_.segments, segments_.data(), segment_memory_.size(), stream);
  synchronize(stream);
}

void DgcCudaMemory::step(TensorView gradient, Verdict* verdict, Stream stream) {
  dgc_take_in(on_, gradient, verdict, stream);
  dgc_select(on_, gradient, stream);
}

void DgcCudaMemory::conclude(TensorView gradient, float fill, const Verdict* verdict,
                             Stream stream) {
  dgc_conclude(on_, gradient, fill, verdict, stream);
}

void DgcCudaMemory::keep(Stream stream) {
  const Buffer* const arrays[] = {&u_, &v_, &segment_memory_};
  kept_.keep(arrays, where_, stream);
}

void DgcCudaMemory::restore(const Verdict* verdict, Stream stream) const {
  const Buffer* const arrays[] = {&u_, &v_, &segment_memory_};
  kept_.restore(arrays, verdict, stream);
}

void DgcCudaMemory::visit_state(StateVisitor& visitor, Stream stream) {
  const auto visit = [&](const Buffer& buffer, const char* name) {
    if (buffer.size() == 0) return;
    std::vector<float> host(buffer.size() / sizeof(float));
    copy_bytes(host.data(), buffer.data(), buffer.size(), stream);
    synchronize(stream);
    visit_by_parameter(visitor, bucket_, name, host, Share::summed);
    copy_bytes(buffer.data(), host.data(), buffer.size(), stream);
    synchronize(stream);
  };
  visit(u_, "u");
  visit(v_, "v");
  if (density_ > 0) {  // else no quotas are there yet
    copy_bytes(segments_.data(), on_.segments, segment_memory_.size(), stream);
    synchronize(stream);
  }
  const std::string prefix = "bucket" + std::to_string(bucket_.id);
  double density = density_;
  visitor.number(prefix + "/density", density, Share::local);
  std::vector<double> thresholds;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    thresholds.push_back(segments_[i].threshold.value);
    visitor.number(prefix + "/threshold" + std::to_string(i), thresholds[i], Share::local);
  }
  // A loaded state may be of another density than the last step here.
  if (density > 0) prepare(density, stream);
  for (std::size_t i = 0; i < segments_.size(); ++i) segments_[i].threshold.value = thresholds[i];
  if (density_ > 0) upload_segments(stream);
}

}  // namespace thinwire
