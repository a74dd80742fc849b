// bindings.cc: states, reports and settings, to Python and back.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/bindings.h"

#include <ATen/ops/from_blob.h>

#include <chrono>

#include "thinwire/comm/c10d/world.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"

namespace thinwire::ddp {
namespace {

at::Tensor tensor_of(const std::vector<float>& values) {
  auto* const data = const_cast<float*>(values.data());
  return at::from_blob(data, {static_cast<std::int64_t>(values.size())}, at::kFloat).clone();
}

}  // namespace

Entries entries_of(const State& state) {
  Entries entries;
  for (const auto& [name, entry] : state) {
    const int share = static_cast<int>(entry.share);
    entries[name] = {share, entry.is_tensor ? Value(tensor_of(entry.values)) : Value(entry.number)};
  }
  return entries;
}

State state_of(const Entries& entries) {
  State state;
  for (const auto& [name, entry] : entries) {
    const auto& [share, value] = entry;
    if (share < 0 || share > static_cast<int>(Share::local))
      fail("state '", name, "': unknown share ", share);
    StateEntry& target = state[name];
    target.share = static_cast<Share>(share);
    if (const auto* number = std::get_if<double>(&value)) {
      target.number = *number;
      continue;
    }
    const at::Tensor flat = std::get<at::Tensor>(value).to(at::kCPU, at::kFloat).contiguous();
    const float* const data = flat.const_data_ptr<float>();
    target.is_tensor = true;
    target.values.assign(data, data + flat.numel());
  }
  return state;
}

py::dict dict_of(const Report& report) {
  py::dict dict;
  dict["steps"] = report.steps;
  dict["skipped"] = report.skipped;
  dict["payload_bytes"] = report.payload_bytes;
  dict["dense_bytes"] = report.dense_bytes;
  dict["ratio"] = report.ratio();
  dict["sent_bytes"] = report.traffic.sent;
  dict["received_bytes"] = report.traffic.received;
  dict["collectives"] = report.traffic.collectives;
  dict["encode_seconds"] = report.encode_seconds;
  dict["wait_seconds"] = report.wait_seconds;
  dict["decode_seconds"] = report.decode_seconds;
  return dict;
}

py::dict dict_of(const Step& step) {
  py::dict dict = dict_of(step.report);
  dict["step"] = step.number;
  dict["skipped"] = step.skipped;
  dict.attr("pop")("steps");
  return dict;
}

Config config_of(const std::string& scheme) {
  Config config = Config::parse(scheme);
  const Options check(config, find_scheme(config.scheme).options);  // refuses unknown options
  make_compressor(config, Bucket::single(0, "probe", 1), {});       // ... and bad values
  return config;
}

std::shared_ptr<Group> group_of(c10::intrusive_ptr<c10d::Backend> backend,
                                c10::intrusive_ptr<c10d::Store> store, int host, double timeout) {
  GroupOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000));
  return torch_engine::make_group(std::move(backend), options, {std::move(store), host});
}

}  // namespace thinwire::ddp
