// nccl.cc: groups over NCCL: c10d's process group, connected, behind the staging of staged.h or
// with device memory.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "thinwire/comm/c10d/device_backend.h"
#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/comm/c10d/staged.h"
#include "thinwire/comm/c10d/stream_backend.h"
#include "thinwire/comm/c10d/within.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

using Nccl = c10d::ProcessGroupNCCL;
using Clock = std::chrono::steady_clock;

// Connecting takes seconds, however short the time limit of a collective is.
constexpr std::chrono::milliseconds patience{30'000};

bool finished(const c10::intrusive_ptr<c10d::Work>& work, Clock::time_point end) {
  while (!work->isCompleted()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (const std::exception_ptr error = work->exception()) std::rethrow_exception(error);
  return true;
}

// The first collectives create the communicator and its connections, in calls that do not return
// when a rank is gone. So they run here, under a time limit. Returns the error text, empty if all
// is well.
std::string connect(const c10::intrusive_ptr<Nccl>& nccl, c10::Device device,
                    std::chrono::milliseconds limit) {
  const std::string silence = "no answer within " + std::to_string(limit.count()) + " ms";
  const auto attempt = [=, end = Clock::now() + limit]() -> std::string {
    try {
      const c10::DeviceGuard guard(device);
      const auto options = at::TensorOptions().dtype(at::kByte).device(device);
      std::vector<at::Tensor> sum = {at::zeros({nccl->getSize()}, options)};
      if (!finished(nccl->allreduce(sum), end)) return silence;
      at::Tensor swapped = sum[0].clone();
      std::vector<std::int64_t> even;
      return finished(nccl->alltoall_base(swapped, sum[0], even, even), end) ? "" : silence;
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  return torch_engine::within(limit, attempt).value_or(silence);
}

// NCCL's own message comes last in c10d's text.
std::string last_words(const std::string& text) {
  const std::string mark = "Last error:\n";
  const std::size_t at = text.find(mark);
  const std::size_t start = at == text.npos ? 0 : at + mark.size();
  return text.substr(start, text.find('\n', start) - start);
}

[[noreturn]] void complain(int rank, int gpu, const std::string& text) {
  const std::string words = last_words(text);
  if (text.find("Duplicate GPU") != text.npos)
    fail("rank ", rank, ": NCCL refuses ranks that share a GPU (", words,
         "); start one worker per GPU, or use Gloo, or, to try it out, give every process another ",
         "NCCL_HOSTID and set NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1");
  fail("rank ", rank, ": NCCL did not connect GPU ", gpu, ": ", words,
       "; NCCL_DEBUG=INFO tells more");
}

c10::intrusive_ptr<Nccl> connected(const c10::intrusive_ptr<c10d::Store>& store,
                                   const Rendezvous& at, int gpu, const GroupOptions& options) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  // Our own limit comes first: it names the rank that is silent; c10d ends the process.
  const auto settings = Nccl::Options::create();
  settings->timeout = 2 * options.timeout + 2 * patience;
  auto nccl = c10::make_intrusive<Nccl>(c10::make_intrusive<c10d::PrefixStore>("nccl", store),
                                        at.rank, at.world, settings);
  const std::string trouble = connect(nccl, device, std::max(options.timeout, patience));
  if (trouble.empty()) return nccl;
  torch_engine::end(nccl);
  complain(at.rank, gpu, trouble);
}

}  // namespace

std::unique_ptr<Group> make_nccl_group(const Rendezvous& at, int gpu, const GroupOptions& options) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  const auto make = [&](const c10::intrusive_ptr<c10d::Store>& store) {
    // Without this, c10d watches from a thread of its own and ends the process before we can name
    // the silent rank.
    setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 1);
    return connected(store, at, gpu, options);
  };
  return torch_engine::make_staged_group(at, options, device, "nccl", make);
}

std::unique_ptr<StreamGroup> make_nccl_stream_group(const Rendezvous& at, int gpu,
                                                    const GroupOptions& options) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  torch_engine::check(at);
  if (at.world == 1) return make_solo_stream_group(torch_engine::device_of(device));
  const torch_engine::Joined joined = torch_engine::join(at, options);
  return make_stream_group(connected(joined.job_store.store, at, gpu, options), device);
}

}  // namespace thinwire
