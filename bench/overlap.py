#!/usr/bin/env python3
"""overlap: counts the exchanges of a trace that begin while backward still runs.

    thinwire train ... --trace trace.json && bench/overlap.py trace.json
"""
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import sys


def slices(events: list[dict], name: str) -> list[dict]:
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} TRACE")
    events = json.loads(pathlib.Path(sys.argv[1]).read_text())["traceEvents"]
    backward = {event["args"]["step"]: event for event in slices(events, "backward")}
    exchanges = slices(events, "exchange")
    inside = 0
    for exchange in exchanges:
        around = backward[exchange["args"]["step"]]
        inside += around["ts"] <= exchange["ts"] < around["ts"] + around["dur"]
    print(f"{inside} of {len(exchanges)} exchanges begin inside backward")


if __name__ == "__main__":
    main()
