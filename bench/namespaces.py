"""namespaces: network namespaces as hosts. Each has its own address and one link to a switch, with
any bandwidth.

    with Network(4) as network:
        network.shape("100mbit")
        network.delay("build/release/bench/link_relay", 0.005)
        worker = network.start(2, ["python3", "worker.py"], {"MASTER_ADDR": network.address(0)})

The switch is a bridge in a namespace too. So the machine's own network is not touched, and no
packet can leave; deleting the namespaces removes everything. They are named after this process.
If a process was killed, the next one removes its namespaces.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

PREFIX = "thinwire"
FOLDER = "/run/netns"  # where `ip netns` mounts them
DEVICE = "eth0"  # on every host's own side
FRAME = 1514  # bytes
RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}  # bits per second


def run(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"`{command}`: {done.stderr.strip() or f'exit status {done.returncode}'}"
        )
    return done.stdout


def burst_of(rate: str) -> int:
    """In bytes, for a rate such as 100mbit. A bucket lets a burst pass after every pause, and
    messages shorter than the burst see no limit: three frames, where the kernel's timers allow it.
    With less than 128 kB, 1 Gbit/s loses a third of its rate."""
    unit = next(unit for unit in RATES if rate.endswith(unit))
    slow = float(rate.removesuffix(unit)) * RATES[unit] <= 100e6
    return 3 * FRAME if slow else 128 << 10


def mounted() -> bool:
    with open("/proc/self/mounts") as file:
        return any(line.split()[1] == FOLDER for line in file)


def missing() -> str:
    """Why namespaces are impossible here; empty if they are possible."""
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces (ip netns) and limits their links (tc)"
    absent = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if absent:
        return f"needs {' and '.join(absent)}: install iproute2"
    before = mounted()
    try:
        with Network(1) as network:
            network.shape("1gbit")
    except RuntimeError as error:
        if not before and mounted():  # a refused `ip netns add` leaves it behind
            run(f"umount {FOLDER}")
        return f"needs network namespaces, veth, a bridge and tbf; this machine refuses: {error}"
    return ""


def kill_all_in(name: str) -> None:
    """All processes in our namespaces and their children: a worker of torchrun leaves its
    session, but not its namespace."""
    for _ in range(100):
        pids = [int(pid) for pid in run(f"ip netns pids {name}").split()]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def remove_left_behind() -> None:
    for line in run("ip netns list").splitlines():
        prefix, _, rest = line.split()[0].partition("-")
        owner = rest.partition("-")[0]
        if prefix == PREFIX and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            kill_all_in(line.split()[0])
            run(f"ip netns del {line.split()[0]}")


class Network:
    def __init__(self, hosts: int) -> None:
        self.names = [f"{PREFIX}-{os.getpid()}-{host}" for host in range(hosts)]
        self._switch = f"{PREFIX}-{os.getpid()}-switch"
        self._made: list[str] = []
        self._started: list[subprocess.Popen] = []

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def __enter__(self) -> Network:
        remove_left_behind()
        try:
            self._make(self._switch)
            run(f"ip -n {self._switch} link add switch type bridge")
            run(f"ip -n {self._switch} link set switch up")
            for host, name in enumerate(self.names):
                self._make(name)
                run(
                    f"ip -n {self._switch} link add port{host} type veth peer name {DEVICE} netns "
                    f"{name}"
                )
                run(f"ip -n {self._switch} link set port{host} master switch up")
                run(f"ip -n {name} address add {self.address(host)}/24 dev {DEVICE}")
                run(f"ip -n {name} link set {DEVICE} up")
                self._pace_nothing(name)
        except BaseException:
            self.close()
            raise
        return self

    def _make(self, name: str) -> None:
        self._made.append(name)  # first, so that a failure below is cleaned up too
        run(f"ip netns add {name}")
        run(f"ip -n {name} link set lo up")

    def _pace_nothing(self, name: str) -> None:
        """Takes reno, which every Linux has. With bbr, which this machine may have, TCP spreads a
        message over up to a third of a round trip, on a link of any rate."""
        write = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
        done = subprocess.run(["ip", "netns", "exec", name, "sh", "-c", write], capture_output=True,
                              text=True)
        if done.returncode != 0:
            raise RuntimeError(f"`{write}`: {done.stderr.strip()}")

    def shape(self, rate: str) -> None:
        """Limits both directions of every link by a token bucket; "none": no limit."""
        for host, name in enumerate(self.names):
            for place, device in ((name, DEVICE), (self._switch, f"port{host}")):
                run(
                    f"tc -n {place} qdisc replace dev {device} root "
                    + (
                        "noqueue"
                        if rate == "none"
                        else f"tbf rate {rate} burst {burst_of(rate)} latency 50ms"
                    )
                )

    def delay(self, relay: str, seconds: float) -> None:
        """Delays every frame from one host to another, each way.

        `relay` (relay.cc) replaces the bridge, with priority over all other processes."""
        ports = [f"port{host}" for host in range(len(self.names))]
        for port in ports:
            run(f"ip -n {self._switch} link set {port} nomaster")
        command = ["nice", "-n", "-20", "ip", "netns", "exec", self._switch, relay]
        self._started.append(
            subprocess.Popen([*command, str(round(seconds * 1e6)), *ports], start_new_session=True)
        )

    def start(
        self, host: int, command: list[str], environment: dict[str, str] | None = None, **options
    ) -> subprocess.Popen:
        """Starts a process on that host, in its own session: Ctrl-C is for the caller, whose
        with-block ends the process."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            start_new_session=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": DEVICE, **(environment or {})},
            **options,
        )
        self._started.append(process)
        return process

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Must not be interrupted: a second Ctrl-C waits until it is done."""
        blocked = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        )
        try:
            for process in self._started:
                process.kill()
            there = {line.split()[0] for line in run("ip netns list").splitlines()}
            for name in self._made:
                if name in there:
                    kill_all_in(name)
                    run(f"ip netns del {name}")
            for process in self._started:
                process.wait()
            self._made, self._started = [], []
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
