#!/usr/bin/env python3
# launch.py: starts a program as the ranks of a job, like torchrun, or lets mpirun do it. The ranks
# meet at a port where rank 0, which inherits the socket, already listens, so nobody else can take
# it. Without --expect every rank must succeed. With it, every rank except the culprit must end with
# an error that matches; for mpirun, the job as a whole.
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time


# More ranks than cores are normal here, hence the settings for sharing them. Open MPI keeps memory
# until the process ends, so other tests look for leaks.
MPI = dict(
    ASAN_OPTIONS="detect_leaks=0",
    OMPI_ALLOW_RUN_AS_ROOT="1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    OMPI_MCA_rmaps_base_oversubscribe="1",
    OMPI_MCA_mpi_yield_when_idle="1",
    OMPI_MCA_btl_vader_single_copy_mechanism="none",
    PRTE_ALLOW_RUN_AS_ROOT="1",
    PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
)


def is_stopped(process):
    try:
        with open(f"/proc/{process.pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def start(command, keep=(), **variables):
    output = tempfile.TemporaryFile(mode="w+")
    environment = dict(os.environ, **MPI, **variables, OMP_NUM_THREADS="1")
    process = subprocess.Popen(
        command, env=environment, stdout=output, stderr=subprocess.STDOUT, pass_fds=keep
    )
    return process, output


def start_all(options):
    if options.mpirun:
        return [start([options.mpirun, "-n", str(options.ranks)] + options.command)]
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        common = dict(
            WORLD_SIZE=str(options.ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(meeting.getsockname()[1]),
        )
        first = start(
            options.command, [meeting.fileno()], RANK="0", LISTENER=str(meeting.fileno()), **common
        )
        return [first] + [
            start(options.command, RANK=str(rank), **common) for rank in range(1, options.ranks)
        ]


def end(process, options):
    if options.mpirun:  # mpirun must live to end its ranks
        process.terminate()
    try:
        process.wait(10 if options.mpirun else 0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def fault_of(rank, status, text, options):
    if status is None:
        return None if rank == options.culprit else "did not end in time"
    if options.expect is None:
        return f"ended with {status}" if status != 0 else None
    if status == 0 or "ended well" in text:
        return "ended well"
    if rank != options.culprit and (status < 0 or not re.search(options.expect, text)):
        return f"ended with {status}, expected to read: {options.expect}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--limit", type=float, default=50, help="seconds for all of it")
    parser.add_argument("--expect", help="regular expression")
    parser.add_argument("--culprit", type=int, default=-1)
    parser.add_argument("--mpirun", help="path of mpirun")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.mpirun:
        options.culprit = -1

    begin = time.monotonic()
    ranks = start_all(options)
    while time.monotonic() < begin + options.limit:
        if all(process.poll() is not None or is_stopped(process) for process, _ in ranks):
            break
        time.sleep(0.02)
    seconds = time.monotonic() - begin

    faults = 0
    for rank, (process, output) in enumerate(ranks):
        status = process.poll()
        if status is None:
            end(process, options)
        output.seek(0)
        text = output.read()
        sys.stdout.write(text)
        fault = fault_of(rank, status, text, options)
        if fault:
            faults += 1
            print(f"launch: rank {rank} {fault}")
    print(f"launch: {options.ranks} ranks, {seconds:.1f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
