// bindings.cc: states, reports and settings, to Python and back.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/bindings.h"

#include <ATen/ops/from_blob.h>

#include <chrono>

#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/comm/c10d/stream_backend.h"
#include "thinwire/comm/c10d/world.h"
#include "thinwire/comm/link.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"

namespace thinwire::ddp {
namespace {

at::Tensor tensor_of(const std::vector<float>& values) {
  auto* const data = const_cast<float*>(values.data());
  return at::from_blob(data, {static_cast<std::int64_t>(values.size())}, at::kFloat).clone();
}

ExchangeOptions exchange_of(const std::string& kind, std::size_t fuse_bytes) {
  ExchangeOptions options;
  options.kind = ExchangeKind::parse(kind);
  if (options.kind.form == ExchangeKind::Form::server)
    fail("exchange '", kind, "': every rank of DDP computes gradients, none can be a server; use ",
         "split");
  options.fuse_bytes = fuse_bytes;
  return options;
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

AttachmentOptions options_of(const std::string& scheme, const std::string& exchange,
                             std::size_t fuse_bytes) {
  AttachmentOptions options{config_of(scheme), exchange_of(exchange, fuse_bytes), false};
  check_fit(options.exchange.kind, options.config);
  return options;
}

Connections connections_of(c10::intrusive_ptr<c10d::Backend> backend,
                           c10::intrusive_ptr<c10d::Store> store, int host, double timeout,
                           c10::Device device, c10::intrusive_ptr<c10d::Backend> data, bool streams,
                           const std::string& link) {
  GroupOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000));
  Connections connections;
  connections.store = store;
  auto group = torch_engine::make_group(std::move(backend), options, {std::move(store), host});
  if (!link.empty()) group = emulate_link(std::move(group), Link::parse(link));
  connections.group = std::move(group);
  connections.timeout = options.timeout;
  connections.streams = streams;
  connections.device = device;
  if (data)
    connections.data = make_stream_group(std::move(data), device);
  else if (connections.group->size() == 1 && (streams || !device.is_cpu()))
    connections.data = make_solo_stream_group(torch_engine::device_of(device));
  return connections;
}

}  // namespace thinwire::ddp
