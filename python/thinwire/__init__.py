"""thinwire: compresses the gradients of PyTorch models, up to thousands of times.

    import thinwire
    handle = thinwire.attach(ddp_model, optimizer, scheme="dgc", density=0.001)

With delay= workers train on while their messages are in flight:

    handle = thinwire.attach(model, optimizer, scheme="dgc", density=0.01, delay=20)

Without DDP, N virtual workers in one process show what a scheme does to a model:

    sim = thinwire.simulate(model, optimizer, workers=8, scheme="dgc", density=0.01)

No Python runs per bucket. docs/pytorch.md has the rest.
"""
# SPDX-License-Identifier: Apache-2.0
import torch  # noqa: F401  (its libraries must be loaded before ours)

from ._advise import Advice, SchemeOutcome, advise
from ._attach import attach
from ._delayed import DelayedHandle
from ._extension import load_scheme
from ._handle import Handle, HookState, hook
from ._inspect import Inspection, SchemeFigures, inspect
from ._native import Error, __version__
from ._reports import DelayedReport, Report, StepReport
from ._schemes import SchemeInfo, SchemeOptions, schemes
from ._simulate import Simulation, simulate
from ._simulation_report import SimulationReport
from ._state import load_checkpoint, merge_states

__all__ = ["Advice", "DelayedHandle", "DelayedReport", "Error", "Handle", "HookState", "Inspection",
           "Report", "SchemeFigures", "SchemeInfo", "SchemeOptions", "SchemeOutcome", "Simulation",
           "SimulationReport", "StepReport", "__version__", "advise", "attach", "hook", "inspect",
           "load_checkpoint", "load_scheme", "merge_states", "schemes", "simulate"]
