"""Compiling the CPU kernels: Numba, without a compiler on the machine, into a cache that the next start reads.

`kernel(signature)` compiles a function when its module is imported. `fault()` says why this machine cannot have that
(then every block runs its reference), `cache_fault()` why what was compiled is not kept.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def to_compile() -> bool:
    """Whether kernels are still to be compiled here: nothing is kept from an earlier start."""
    folder = _cache_folder()[0]
    return not fault() and not (folder and any(Path(folder).iterdir()))


@contextmanager
def _caching() -> Iterator[bool]:
    """Numba's cache is our folder while a function is made; whether there is one."""
    from numba import config

    folder, before = _cache_folder()[0], config.__dict__["CACHE_DIR"]
    config.__dict__["CACHE_DIR"] = folder
    try:
        yield bool(folder)
    finally:
        config.__dict__["CACHE_DIR"] = before


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function of integers (addresses, counts, strides in bytes) for a signature, now. It holds no lock of
    the interpreter while it runs and raises nothing.
    """
    from numba import njit

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        with _caching() as kept:
            result: Callable[..., Any] = njit(signature, nogil=True, error_model="numpy", cache=kept)(function)
        return result

    return compiled


class CompiledEntry:
    """A compiled function that other modules' kernels call by its name, so that it is not compiled again in each."""

    def __init__(self, symbol: str, signature: Any, made: Any):
        import llvmlite.binding as llvm
        from numba import types

        llvm.add_symbol(symbol, made.address)
        self._made, self._call = made, made.ctypes
        self._numba_type_ = types.ExternalFunction(symbol, signature)

    def __call__(self, *arguments: int) -> Any:
        return self._call(*arguments)


def entry(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `kernel`, for a large function that kernels of other modules call too."""
    from numba import cfunc

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        with _caching() as kept:
            made = cfunc(signature, error_model="numpy", cache=kept)(function)
        return CompiledEntry(f"{function.__module__}.{function.__name__}", signature, made)

    return compiled
