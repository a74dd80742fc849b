"""_extension: compiles and loads a user's own scheme from one C++ file."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Optional, Union

import torch

from . import _native
from ._schemes import schemes

_loaded: dict[str, ctypes.CDLL] = {}  # by source; never unloaded, because schemes point into them


def _command(source: pathlib.Path, target: pathlib.Path) -> list[str]:
    package, native = pathlib.Path(__file__).parent, pathlib.Path(_native.__file__)
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise RuntimeError(f"load_scheme: no C++ compiler '{compiler}'; install one, or name it in "
                           "CXX")
    # No contraction, so that all machines give the same bits.
    return [compiler, "-std=c++20", "-O3", "-fPIC", "-shared", "-ffp-contract=off",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            f"-I{package / 'include'}", str(source), "-o", str(target),
            f"-L{native.parent}", f"-l:{native.name}", f"-Wl,-rpath,{native.parent}"]


def _build(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    built = str(os.stat(_native.__file__).st_mtime_ns).encode()
    key = hashlib.sha256(source.read_bytes() + built).hexdigest()[:16]
    target = folder / f"{source.stem}-{key}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Several ranks may build at once. The last one to rename wins.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = pathlib.Path(scratch) / target.name
            done = subprocess.run(_command(source, fresh), capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"load_scheme: {source} does not compile:\n{done.stderr}")
            fresh.replace(target)
    return target


def load_scheme(source: Union[str, "os.PathLike[str]"],
                build_directory: Optional[str] = None) -> str:
    """Compiles a C++ file that defines a scheme, and returns its name, for attach(scheme=...).

    The file includes thinwire/compress/registry.h, derives a Compressor, and ends with

        extern "C" const thinwire::Scheme* thinwire_scheme() { return &my_scheme; }

    examples/python/cyclic.cc is one. The file is built once per content, in `build_directory`
    (default: ~/.cache/thinwire).
    """
    path = pathlib.Path(source).resolve()
    cache = pathlib.Path.home() / ".cache" / "thinwire"
    folder = pathlib.Path(build_directory) if build_directory else cache
    before = {scheme.name for scheme in schemes()}
    if str(path) in _loaded:
        raise RuntimeError(f"load_scheme: {path} is loaded already")
    library = ctypes.CDLL(str(_build(path, folder)))
    entry = getattr(library, "thinwire_scheme", None)
    if entry is None:
        raise RuntimeError(f'load_scheme: {path} has no   extern "C" const thinwire::Scheme* '
                           "thinwire_scheme()")
    entry.restype = ctypes.c_void_p
    _native.register_scheme(entry())
    _loaded[str(path)] = library
    return ({scheme.name for scheme in schemes()} - before).pop()
