"""_log: the logger "thinwire". THINWIRE_LOG=debug|info|warning|off sets its level; without it, info."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger("thinwire")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
           "off": logging.CRITICAL + 1}


def prepare() -> None:
    """Lines go to stderr, unless the program has set up the logger, or logging as a whole, itself."""
    wish = os.environ.get("THINWIRE_LOG", "").lower()
    if wish and wish not in _LEVELS:
        raise ValueError(f"THINWIRE_LOG={wish}: expected one of {', '.join(_LEVELS)}")
    if wish or logger.level == logging.NOTSET:
        logger.setLevel(_LEVELS[wish or "info"])
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("thinwire: %(message)s"))
        logger.addHandler(handler)
