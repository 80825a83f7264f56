"""From a checkpoint's config.json to a `ModelConfig`, and the typed fields that families read it with. No torch.

Only numbers of the file are used, none of a known model; what the code cannot honour is refused by name.
"""

from pathlib import Path
from typing import Any

from strata_cli.errors import UsageError
from strata_cli.model.families import FAMILIES, ModelConfig, family_of
from strata_cli.model.files import one_line, present, read_object, shown

REQUIRED = object()

# No model is near these; beyond them a damaged number would take memory or hours before anything is compared.
SIZE_LIMIT = 2**31
LAYERS_LIMIT = 10_000
EXPERTS_LIMIT = 1_000_000  # in all layers
NUMBER_LIMIT = 1e30  # float32 holds it


def load_config(directory: Path) -> ModelConfig:
    """Read `directory`/config.json (and the stop ids of generation_config.json).

    Raises UsageError: no such directory or file, something else of that name, a JSON fault, an unsupported
    architecture, a field that is missing or nonsensical, a feature that is not implemented.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory" if directory.exists() else f"no such model: {directory}")
    path = directory / "config.json"
    if not present(path):
        raise UsageError(
            f"{directory} has no config.json", "a checkpoint is a directory with config.json and *.safetensors"
        )
    generation = directory / "generation_config.json"
    stop_ids = read_object(generation).get("eos_token_id") if present(generation) else None
    present(directory / "tokenizer.json")  # what is not a file would pass for a checkpoint without a tokenizer
    return parse_config(read_object(path), stop_ids, str(path))


def parse_config(top: dict[str, Any], stop_ids: Any = None, source: str = "config.json") -> ModelConfig:
    """The ModelConfig of a parsed config.json.

    Args:
        top: the whole file; its `text_config` is read where there is one, else the top level (text-only exports).
        stop_ids: `eos_token_id` of generation_config.json, an id, a list of ids, or None.
        source: what error messages call the file.
    """
    outer = Fields(top, source)
    text = outer.object("text_config") or top
    kind = text.get("model_type") or top.get("model_type")
    if not isinstance(kind, str | None):
        raise outer.fault("model_type", kind, "must be a string")
    found = family_of(kind)
    if found is None:
        classes = top.get("architectures")
        named = kind or (", ".join(map(str, classes)) if isinstance(classes, list) else "") or "none named"
        supported = ", ".join(sorted(FAMILIES))
        raise UsageError(f"{source}: architecture {one_line(named)} is not supported", f"supported: {supported}")
    _check_quantization(outer)
    return found.parse(top, stop_ids, source)


class Fields:
    """Typed access to one JSON object; every fault names the file and the field."""

    def __init__(self, values: dict[str, Any], source: str):
        self.values = values
        self.source = source

    def fault(self, name: str, value: Any, why: str) -> UsageError:
        return UsageError(f"{self.source}: {name} = {shown(value)}: {why}")

    def get(self, name: str, default: Any = REQUIRED) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is REQUIRED:
                raise UsageError(f"{self.source}: {name} is missing")
            return default
        return value

    def size(self, name: str, limit: int = SIZE_LIMIT) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(name, value, "must be a whole number above 0")
        if value > limit:
            raise self.fault(name, value, f"must be at most {limit}")
        return value

    def number(self, name: str, default: Any = REQUIRED) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fault(name, value, "must be a number above 0")
        if value > NUMBER_LIMIT:  # compared before it is converted: an integer may be too large for a float
            raise self.fault(name, value, f"must be at most {NUMBER_LIMIT:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.fault(name, value, "must be true or false")
        return value

    def object(self, name: str) -> dict[str, Any]:
        """An object, {} where there is none."""
        value = self.get(name, default={})
        if not isinstance(value, dict):
            raise self.fault(name, value, "must be an object")
        return value

    def token_ids(self, name: str, value: Any, vocab: int) -> tuple[int, ...]:
        """`value` as token ids: one, a list of them, or None; all below `vocab`."""
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise self.fault(name, value, "must be a token id or a list of them")
            if token >= vocab:
                raise self.fault(name, token, f"outside vocab_size = {vocab}")
        return tuple(ids)

    def only(self, name: str, supported: Any, default: Any) -> None:
        value = self.get(name, default)
        if value != supported:
            raise self.fault(name, value, f"not supported, only {shown(supported)}")


def _check_quantization(top: Fields) -> None:
    """What a model's format is named by. How its weights are stored, their tensors say."""
    groups = Fields(top.object("quantization_config"), top.source).object("config_groups")
    for name in groups:
        Fields(Fields(groups, top.source).object(name), top.source).object("weights")
