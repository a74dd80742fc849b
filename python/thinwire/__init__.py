"""thinwire: gradients of DDP models, compressed up to thousands of times.

    import thinwire
    link = thinwire.attach(ddp_model, optimizer, scheme="dgc", density=0.001)
    link = thinwire.attach(model, optimizer, scheme="dgc", density=0.01, delay=20)      # workers train on while messages travel

Buckets travel in C++ alone. docs/pytorch.md tells the rest.
"""
# SPDX-License-Identifier: Apache-2.0
import torch  # its libraries must be there before ours  # noqa: F401

from ._attach import attach
from ._checkpoint import load_checkpoint
from ._delayed import DelayedLink
from ._extension import load_scheme
from ._link import Link
from ._native import Error, schemes
from ._plain import State, hook
from ._state import merge_states

__all__ = ["DelayedLink", "Error", "Link", "State", "attach", "hook", "load_checkpoint",
           "load_scheme", "merge_states", "schemes"]
