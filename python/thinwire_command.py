"""thinwire_command: the console script `thinwire`, which runs the program inside the package.

It does not import the package, because that imports torch, which takes longer than most verbs.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import os
import pathlib
import sys


def _folder_of(package: str) -> pathlib.Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        sys.exit(f"thinwire: the Python package {package} is not installed; install it with pip")
    return pathlib.Path(spec.origin).parent


def main() -> None:
    """Replaces this process by the thinwire program, with the same arguments."""
    program = _folder_of("thinwire") / "bin" / "thinwire"
    if not program.exists():
        sys.exit("thinwire: the package was built without the command, because CLI11 or "
                 "nlohmann_json was missing; install libcli11-dev, nlohmann-json3-dev and "
                 "libgloo-dev, then run pip install --force-reinstall --no-deps .")
    # Verbs that train are in a second program, which needs the libraries of the installed torch.
    libraries = [str(_folder_of("torch") / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    os.execve(program, ["thinwire", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
