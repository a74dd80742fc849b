// gloo.cc: how the workers of a job find each other and become a group over Gloo.
// SPDX-License-Identifier: Apache-2.0
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "thinwire/comm/c10d/join.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

// Under torchrun the agent holds the store at MASTER_PORT; otherwise rank 0 does.
bool agent_holds_store() { return value_of("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

std::string address_of(const Rendezvous& at) { return at.host + ":" + std::to_string(at.port); }

// The number of groups of this process that have met at this address before.
int met_before(const Rendezvous& at) {
  static std::mutex mutex;
  static std::map<std::string, int> groups;
  const std::lock_guard lock(mutex);
  return groups[address_of(at)]++;
}

Store connect(const Rendezvous& at, const GroupOptions& options) {
  const int number = met_before(at);
  c10d::TCPStoreOptions store;
  store.port = at.port;
  store.isServer = at.rank == 0 && !agent_holds_store();
  store.waitWorkers = false;  // our own roll does that, and knows who is missing
  store.multiTenant = true;   // several groups of a process may meet at one address
  store.timeout = options.timeout;
  if (at.listener >= 0 && number == 0) store.masterListenFd = at.listener;  // the store closes it
  // The prefix separates the keys of groups that meet here, and of a job's restarts.
  const std::string prefix =
      "thinwire/" + value_of("TORCHELASTIC_RESTART_COUNT") + "/" + std::to_string(number);
  return c10::make_intrusive<c10d::PrefixStore>(
      prefix, c10::make_intrusive<c10d::TCPStore>(at.host, store));
}

std::string missing_of(const Store& store, int world) {
  std::string missing;
  for (int r = 0; r < world; ++r)
    if (!store->check({"here/" + std::to_string(r)}))
      missing.append(missing.empty() ? "rank " : ", rank ").append(std::to_string(r));
  return missing;
}

void wait_for_all(const Store& store, const Rendezvous& at, Clock::time_point deadline) {
  store->set("here/" + std::to_string(at.rank), std::vector<std::uint8_t>{1});
  for (;;) {
    const std::string missing = missing_of(store, at.world);
    if (missing.empty()) return;
    if (Clock::now() >= deadline)
      fail(missing, " did not come; is it running, with this address, its own rank and world ",
           at.world, "?");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first) freeaddrinfo(first);
  }
};

// Our own address on the network that leads to the meeting place. Connecting a datagram socket
// sends no packet but reveals this address. A machine's host name often resolves to loopback, so it
// is no use here.
std::string local_address(const Rendezvous& at) {
  Addresses found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found.first) != 0)
    return "";
  for (const addrinfo* to = found.first; to; to = to->ai_next) {
    const int descriptor = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
    if (descriptor < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    auto* address = reinterpret_cast<sockaddr*>(&own);
    char text[NI_MAXHOST] = {};
    const bool known =
        connect(descriptor, to->ai_addr, to->ai_addrlen) == 0 &&
        getsockname(descriptor, address, &length) == 0 &&
        getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
    close(descriptor);
    if (known) return text;
  }
  return "";
}

std::shared_ptr<gloo::transport::Device> device_for(const Rendezvous& at) {
  using Gloo = c10d::ProcessGroupGloo;
  if (const std::string name = value_of("GLOO_SOCKET_IFNAME"); !name.empty())
    return Gloo::createDeviceForInterface(name.substr(0, name.find(',')));
  const std::string address = local_address(at);
  return address.empty() ? Gloo::createDefaultDevice() : Gloo::createDeviceForHostname(address);
}

}  // namespace

void torch_engine::check(const Rendezvous& at) {
  if (at.world < 1 || at.rank < 0 || at.rank >= at.world)
    fail("c10d group: expected a rank from 0 to world - 1, got rank ", at.rank, " of ", at.world);
  if (at.world > 1 && at.port == 0)
    fail("c10d group: rank ", at.rank, ": expected the port where the workers meet (MASTER_PORT)");
}

torch_engine::Joined torch_engine::join(const Rendezvous& at, const GroupOptions& options) {
  const auto deadline = Clock::now() + options.timeout;
  try {
    const Store store = connect(at, options);
    wait_for_all(store, at, deadline);
    auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    gloo->devices.push_back(device_for(at));
    return {{store, agent_holds_store() ? -1 : 0},
            c10::make_intrusive<c10d::ProcessGroupGloo>(store, at.rank, at.world, std::move(gloo))};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail("rank ", at.rank, " of ", at.world, ": no meeting at ", address_of(at), " within ",
         options.timeout.count(), " ms: ", text.substr(0, text.find('\n')));
  }
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const Rendezvous& at,
                                                    const GroupOptions& options) {
  torch_engine::check(at);
  return torch_engine::join(at, options).backend;
}

std::unique_ptr<Group> make_gloo_group(const Rendezvous& at, const GroupOptions& options) {
  torch_engine::check(at);
  if (at.world == 1) return torch_engine::make_group({}, options, {});
  torch_engine::Joined joined = torch_engine::join(at, options);
  return torch_engine::make_group(std::move(joined.backend), options, std::move(joined.job_store));
}

}  // namespace thinwire
