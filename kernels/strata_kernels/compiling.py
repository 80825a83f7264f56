"""Compiling the CPU kernels: Numba, without a compiler on the machine, into a cache that the next start reads.

`kernel(signature)` compiles a function when its module is imported. `fault()` says why this machine cannot have that
(then every block runs its reference), `cache_fault()` why what was compiled is not kept.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs

SOURCES = Path(__file__).parent


@cache
def fault() -> str:
    """Why kernels cannot be compiled here, in a line; empty where they can."""
    if sys.byteorder != "little":
        return "this machine is big-endian"
    try:
        import llvmlite.binding as llvm
        import numba  # noqa: F401
    except Exception as e:  # whatever a broken or too old installation raises
        return f"numba is not usable here ({e})"
    features = llvm.get_host_cpu_features()
    if "x86" in llvm.get_process_triple() and not (features.get("avx2") and features.get("fma")):
        return "this processor has no AVX2"
    return ""


@cache
def _cache_folder() -> tuple[str, str]:
    """Where compiled kernels are kept, by a digest of their sources, and why they cannot be."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.rglob("*.py")):
        digest.update(source.read_bytes())
    root = os.environ.get("STRATA_KERNEL_CACHE") or platformdirs.user_cache_dir("strata")
    folder = Path(root) / "kernels" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        return "", f"{folder}: {e.strerror}"
    return str(folder), ""


def cache_fault() -> str:
    """Why compiled kernels are not kept for the next start, in a line; empty where they are."""
    return _cache_folder()[1]


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function of integers (addresses, counts, strides in bytes) for a signature, now. It holds no lock of
    the interpreter while it runs and raises nothing.
    """
    from numba import config, njit

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        folder, before = _cache_folder()[0], config.__dict__["CACHE_DIR"]
        config.__dict__["CACHE_DIR"] = folder
        try:
            result: Callable[..., Any] = njit(signature, nogil=True, error_model="numpy", cache=bool(folder))(function)
        finally:
            config.__dict__["CACHE_DIR"] = before
        return result

    return compiled
