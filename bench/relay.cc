// relay.cc: a switch that delays every frame, like a long wire between network namespaces.
//
//     link_relay MICROSECONDS DEVICE...
//
// Takes each Ethernet frame that arrives at a device, holds it for this time, and sends it out
// at the device behind which its receiver was last seen (at all others for an unknown receiver
// or a broadcast). This gives kernels without netem a real delay, which TCP sees like any
// other. Frames keep the kernel's own header for checksums and segmentation (virtio_net_hdr),
// so a frame of 64 kB costs no more than a small one. `bench/namespaces.py` starts this
// program, in a separate namespace.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeader = 10;                // size of struct virtio_net_hdr
constexpr std::size_t kLongest = kHeader + 65600;  // a segmented frame has up to 64 kB
constexpr std::size_t kAddress = 6;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "link_relay: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

void set(int socket, int level, int option, int value, const char* name) {
  if (setsockopt(socket, level, option, &value, sizeof value) != 0) fail(name);
}

int open_device(const std::string& name) {
  const int device = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
  if (device < 0) fail("packet socket (needs root)");
  set(device, SOL_PACKET, PACKET_VNET_HDR, 1, "PACKET_VNET_HDR");
  set(device, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING");
  set(device, SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20, "SO_RCVBUFFORCE");
  set(device, SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20, "SO_SNDBUFFORCE");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
  if (bind(device, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail(name);
  return device;
}

struct Held {
  Clock::time_point release;
  std::size_t from = 0;
  std::vector<char> frame;  // after its virtio_net_hdr
};

class Relay {
 public:
  Relay(Clock::duration delay, const std::vector<std::string>& names) : delay_(delay) {
    for (const std::string& name : names) {
      devices_.push_back(open_device(name));
      polled_.push_back({devices_.back(), POLLIN, 0});
    }
  }

  [[noreturn]] void run() {
    for (;;) {
      wait();
      for (std::size_t d = 0; d < devices_.size(); ++d) take_in(d);
      while (!held_.empty() && held_.front().release <= Clock::now()) {
        send_on(held_.front());
        held_.pop_front();
      }
    }
  }

 private:
  void wait() {
    timespec left{};
    if (!held_.empty()) {
      const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::max(held_.front().release - Clock::now(), Clock::duration::zero()));
      left.tv_sec = static_cast<time_t>(rest.count() / 1'000'000'000);
      left.tv_nsec = static_cast<long>(rest.count() % 1'000'000'000);
    }
    ppoll(polled_.data(), polled_.size(), held_.empty() ? nullptr : &left, nullptr);
  }

  void take_in(std::size_t device) {
    for (;;) {
      const ssize_t got = recv(devices_[device], buffer_.data(), buffer_.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < static_cast<ssize_t>(kHeader + ETH_HLEN)) return;
      held_.push_back({Clock::now() + delay_, device, {buffer_.begin(), buffer_.begin() + got}});
      place_[std::string(buffer_.data() + kHeader + kAddress, kAddress)] = device;
    }
  }

  // A full queue of the device drops the frame, like that of a switch.
  void send_on(const Held& held) {
    const auto known = place_.find(std::string(held.frame.data() + kHeader, kAddress));
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (d == held.from || (known != place_.end() && known->second != d)) continue;
      (void)!send(devices_[d], held.frame.data(), held.frame.size(), 0);
    }
  }

  const Clock::duration delay_;
  std::vector<int> devices_;
  std::vector<pollfd> polled_;
  std::deque<Held> held_;                     // by release time: the delay is the same for all
  std::map<std::string, std::size_t> place_;  // device by address
  std::vector<char> buffer_ = std::vector<char>(kLongest);
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  unsigned microseconds = 0;
  if (words.size() < 3 ||
      std::from_chars(words[0].data(), words[0].data() + words[0].size(), microseconds).ptr !=
          words[0].data() + words[0].size()) {
    std::fprintf(stderr, "usage: link_relay MICROSECONDS DEVICE DEVICE...\n");
    return 2;
  }
  Relay(std::chrono::microseconds(microseconds), {words.begin() + 1, words.end()}).run();
}
