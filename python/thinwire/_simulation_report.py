"""_simulation_report: what a simulation has sent, and the step that a link would give."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from ._reports import Report, show_bytes, show_seconds


@dataclass(frozen=True)
class SimulationReport(Report):
    """The Report of one worker of a simulation, summed since its start. Bytes are the mean of all
    workers, seconds are worker 0's.

    workers          virtual workers
    compute_seconds  one worker's share of one step on this machine, on average
    link             the link that simulate() was given
    """

    workers: int
    compute_seconds: float
    link: Optional[str]
    # No fields, so that asdict(), JSON and pickle see plain values only: the seconds of the last
    # step's collectives over a link. A pickled report knows those of its own link.
    _over: ClassVar[Any] = None
    _known: ClassVar[Optional[float]] = None

    def step_seconds(self, link: Optional[str] = None) -> float:
        """An estimate of a step of N processes over a link, as "100mbit,1ms": one worker's compute
        and its encoding and decoding on this machine, then the collectives of the last step.

        Nothing overlaps in it. A real exchange overlaps with backward, but its workers also wait
        for the slowest.
        """
        over = self.link if link is None else link
        if over is None:
            raise ValueError("step_seconds: which link? give one, as in "
                             "step_seconds('100mbit,1ms'), or simulate(..., link=...)")
        if self.steps == 0:
            raise ValueError("step_seconds: no steps yet")
        coding = (self.encode_seconds + self.decode_seconds) / self.steps
        return self.compute_seconds + coding + self._collectives_over(over)

    def _collectives_over(self, link: str) -> float:
        if self._over is not None:
            return float(self._over(link))
        if self._known is not None and link == self.link:
            return self._known
        raise ValueError(f"step_seconds: a report that was pickled, or made by replace(), no "
                         f"longer knows its collectives over {link}; ask that of sim.report()")

    def __copy__(self) -> SimulationReport:
        return self  # nothing in it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> SimulationReport:
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if state.pop("_over", None) is not None and self.link is not None and self.steps > 0:
            state["_known"] = self._collectives_over(self.link)
        return state

    def __str__(self) -> str:
        if self.steps == 0:
            return "no steps yet"
        text = (f"{self.steps} steps, {self.skipped} skipped; {self.workers} virtual workers; "
                f"{show_bytes(self.payload_bytes / self.steps)} per worker and step, "
                f"1/{self.ratio:.3g} of dense; per step a worker computes "
                f"{show_seconds(self.compute_seconds)} and encodes "
                f"{show_seconds(self.encode_seconds / self.steps)}")
        if self.link is not None and (self._over is not None or self._known is not None):
            text += f"; estimated step over {self.link}: {show_seconds(self.step_seconds())}"
        return text
