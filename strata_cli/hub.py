"""From what the user calls a model to a directory: demo | path | alias | org/repo[@revision] of the Hugging Face cache.

Nothing is downloaded silently: a person is asked, with the size, or `--download` was given; else it is an error that
says how.
"""

import difflib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_cli.errors import StrataError, UsageError
from strata_cli.names import os_name, text_of
from strata_cli.settings import DEFAULT_MODEL

# What a checkpoint needs of a repository: no other framework's weights, no images.
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's directory, and the name it was asked for by (an alias resolved)."""

    name: str
    path: Path


Confirm = Callable[[str], bool]


def find_model(
    ref: str, aliases: Mapping[str, str] | None = None, download: bool = False, confirm: Confirm | None = None
) -> ModelFiles:
    """The directory of a model.

    Args:
        ref: what the user typed.
        aliases: names of the user config; an alias stands for any ref but another alias.
        download: fetch a model that is not in the cache.
        confirm: asks a yes-or-no question; default: on a terminal, else no.

    Raises UsageError when there is no such model, with what there is; StrataError when a download fails.
    """
    if ref == DEFAULT_MODEL:
        from strata_cli.demo import model_path

        return ModelFiles(ref, model_path())
    ref = text_of(ref)
    path = Path(os_name(ref)).expanduser()
    if ref and _exists(path):
        return ModelFiles(ref, path)
    if aliases and ref in aliases:
        return find_model(aliases[ref], None, download, confirm)
    repo, _, revision = ref.partition("@")
    if path.is_absolute() or ref.startswith((".", "~")) or repo.count("/") != 1 or not all(repo.split("/")):
        raise _not_found(ref, aliases or {})
    snapshot = cached_snapshot(repo, revision or None)
    if snapshot is None:
        snapshot = _download(repo, revision or None, download, confirm or _ask, aliases or {})
    return ModelFiles(ref, snapshot)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system
        return False


def cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """The snapshot of a repository in the cache, if its weights are whole; None where the download is to be done."""
    from huggingface_hub import constants, try_to_load_from_cache

    config = try_to_load_from_cache(repo, "config.json", constants.HF_HUB_CACHE, revision)
    if not isinstance(config, str):
        return None
    snapshot = Path(config).parent
    return snapshot if weights_are_whole(snapshot) else None


def weights_are_whole(directory: Path) -> bool:
    """Is every shard there that the index names (or the one file, where there is no index)?"""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return any(directory.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return all((directory / shard).is_file() for shard in shards)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return True  # a broken index is the loader's to report


def cached_models() -> list[str]:
    """The repositories in the Hugging Face cache that are models."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return sorted(repo.repo_id for repo in repos if repo.repo_type == "model")


def _not_found(ref: str, aliases: Mapping[str, str]) -> UsageError:
    """No such model; what there is, the nearest first."""
    there = [*aliases, *cached_models(), DEFAULT_MODEL]

    def likeness(name: str) -> float:
        tail = name.split("/")[-1].lower()
        return difflib.SequenceMatcher(None, ref.split("/")[-1].lower(), tail).ratio()

    shown = sorted(there, key=likeness, reverse=True)[:5]
    return UsageError(f"no such model: {ref}", f"a directory, or one of: {', '.join(shown)}")


def _download(repo: str, revision: str | None, wanted: bool, confirm: Confirm, aliases: Mapping[str, str]) -> Path:
    """Fetch a repository, if somebody wants it."""
    ref = f"{repo}@{revision}" if revision else repo
    command = f"hf download {repo}" + (f" --revision {revision}" if revision else "")
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    if offline or not (wanted or sys.stdin.isatty()):
        missing = _not_found(ref, aliases)
        where = "HF_HUB_OFFLINE is set" if offline else f"fetch it with --download or `{command}`"
        raise UsageError(f"{ref} is not in the Hugging Face cache, or not whole", f"{where}; {missing.hint}")
    from huggingface_hub import HfApi, snapshot_download

    try:
        files = HfApi().model_info(repo, revision=revision, files_metadata=True).siblings or []
        size = sum(f.size or 0 for f in files if any(Path(f.rfilename).match(pattern) for pattern in WANTED))
        if not wanted and not confirm(f"{ref} is not in the cache. Download {size / 2**30:.1f} GiB?"):
            raise UsageError(f"{ref} is not in the Hugging Face cache", f"later: {command}")
        return Path(snapshot_download(repo, revision=revision, allow_patterns=WANTED))
    except StrataError:
        raise
    except Exception as fault:  # whatever the network or the hub answers
        reason = str(fault).strip().splitlines()
        raise StrataError(
            f"{ref} cannot be fetched: {reason[0] if reason else type(fault).__name__}", command
        ) from None


def _ask(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
