"""Where each setting comes from: flag > environment STRATA_* > user config > profile > default.

One function, `resolve`, reads all five and returns frozen `Settings`, every value with its source. The user config is
`config.toml` in the user's config directory: engine settings and `model`, `profile` at the top, `[sampling]`,
`[aliases]`. A profile is a TOML file of engine settings with an optional `[sampling]`. Names are those of the flags,
with underscores. An unknown name or a value out of range is an error that names the file and the nearest name.
"""

import difflib
import importlib.resources
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import platformdirs

from strata_cli import __version__
from strata_cli.config import EngineConfig, SamplingParams, Sourced, unknown_name
from strata_cli.errors import UsageError
from strata_cli.names import os_name, readable, text_of

DEFAULT_MODEL = "demo"
# The sampling parameters that flags, environment, config and profiles can set; the others belong to a single request.
SAMPLING_FIELDS = tuple(
    f.name for f in fields(SamplingParams) if f.name not in ("logit_bias", "stop_token_ids", "spec", "drafter")
)
ENGINE_FIELDS = tuple(f.name for f in fields(EngineConfig))
CHOICES = ("model", "profile")  # of which checkpoint, with which settings
ENV_PREFIX = "STRATA_"
PROCESS_ENV = ("debug", "step_stats", "no_history")  # STRATA_* variables that are not settings of the engine

_HINTS = {**get_type_hints(SamplingParams), **get_type_hints(EngineConfig), "model": str, "profile": str}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command runs with. `sampling` holds what was set; the checkpoint's own defaults fill the rest."""

    model: str = DEFAULT_MODEL
    profile: str | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Sourced] = field(default_factory=dict)
    step_stats: Path | None = None
    tui: bool = True
    ascii: bool = False
    quiet: bool = False
    download: bool = False

    def stats_header(self) -> dict[str, Any]:
        """First line of the step-statistics file: what ran, with which settings."""
        config = {name: text_of(v) if isinstance(v, str) else v for name, v in asdict(self.engine).items()}
        return {"model": self.model, "profile": self.profile, "config": config, "version": __version__}

    def describe(self) -> str:
        """Every setting, its value and its source, one a line."""
        names = [*CHOICES, *ENGINE_FIELDS, *SAMPLING_FIELDS]
        unset = {**{n: Sourced(getattr(self.engine, n)) for n in ENGINE_FIELDS}, "model": Sourced(self.model)}
        rows = [(n, self.sources.get(n) or unset.get(n) or Sourced(None, "the checkpoint's own")) for n in names]
        return readable("\n".join(f"{n:<20} {_show(s.value):<16} {s.source}" for n, s in rows))


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source, by name; `label` says where a name was set."""

    values: Mapping[str, Any]
    label: Callable[[str], str]


def resolve(flags: Mapping[str, Any], env: Mapping[str, str], config_file: Path | None = None) -> Settings:
    """Settings from all sources.

    Args:
        flags: flag name (underscores) to value; None and () mean that the flag was not given. Beside settings it may
            hold `step_stats`, `tui`, `ascii`, `quiet` and `download`.
        env: the environment.
        config_file: the user config; default `config.toml` in the user's config directory. May be missing.
    """
    known = (*CHOICES, *ENGINE_FIELDS, *SAMPLING_FIELDS)
    from_flags = Layer({n: _text(n, v) for n, v in flags.items() if n in known and v not in (None, (), [])}, _flag)
    from_env = Layer(_read_env(env), lambda name: ENV_PREFIX + name.upper())
    path = config_file or platformdirs.user_config_path("strata") / "config.toml"
    config, aliases = _read_config(path)
    layers = [from_flags, from_env, config]
    profile = _first("profile", layers)
    if profile is not None:
        layers.append(read_profile(profile.value))
    sources = {name: found for name in known if (found := _first(name, layers)) is not None}
    step_stats = flags.get("step_stats") or env.get(f"{ENV_PREFIX}STEP_STATS")
    model = sources.get("model")
    return Settings(
        model=model.value if model else DEFAULT_MODEL,
        profile=profile.value if profile else None,
        engine=EngineConfig(**{n: s.value for n, s in sources.items() if n in ENGINE_FIELDS}),
        sampling={n: s.value for n, s in sources.items() if n in SAMPLING_FIELDS},
        aliases=aliases,
        sources=sources,
        step_stats=Path(step_stats) if step_stats else None,
        tui=bool(flags.get("tui", True)),
        ascii=bool(flags.get("ascii", False)),
        quiet=bool(flags.get("quiet", False)),
        download=bool(flags.get("download", False)),
    )


def _text(name: str, value: Any) -> Any:
    """A flag's or variable's value, as text where it is not the name of a file alone."""
    if name in CHOICES:
        return text_of(value)
    return [text_of(each) for each in value] if name == "stop" else value


def profiles() -> dict[str, Traversable]:
    """Name to file of the profiles that come with strata; in a bare checkout they lie beside the package."""
    try:
        folder: Traversable = importlib.resources.files("strata_cli.profiles")
    except ModuleNotFoundError:
        folder = Path(__file__).resolve().parent.parent / "profiles"
    found = {entry.name.removesuffix(".toml"): entry for entry in folder.iterdir() if entry.name.endswith(".toml")}
    return dict(sorted(found.items()))


def read_profile(name: str) -> Layer:
    """The settings of a profile, by name or by the path of a .toml file."""
    shipped = profiles()
    file = Path(os_name(name)) if name.endswith(".toml") else shipped.get(name)
    if file is None or not file.is_file():
        raise UsageError(unknown_name("profile", name, shipped), f"profiles: {', '.join(shipped)}, or a .toml file")
    table = _read_toml(file.read_text(encoding="utf-8"), f"profile {name}")
    return _settings_layer(table, f"profile {name}", ENGINE_FIELDS)


def check_value(name: str, value: Any, strict: bool = True) -> Any:
    """The value in its setting's type, within its range; a string is parsed where `strict` is False.

    Raises UsageError without a place; the caller knows the file or the variable.
    """
    try:
        if name == "stop" and isinstance(value, str):
            value = json.loads(value) if not strict and value.startswith("[") else [value]
        value = msgspec.convert(value, _HINTS[name], strict=strict)
    except (msgspec.ValidationError, json.JSONDecodeError) as fault:
        raise UsageError(f"{name} = {value!r}: {fault}") from None
    if name in ENGINE_FIELDS:
        EngineConfig(**{name: value})
    elif name in SAMPLING_FIELDS:
        SamplingParams(**{name: value})
    return value


def _first(name: str, layers: list[Layer]) -> Sourced | None:
    """The setting in the first layer that has it, checked."""
    for layer in layers:
        if name in layer.values:
            return Sourced(_checked(name, layer.values[name], layer.label(name)), layer.label(name))
    return None


def _checked(name: str, value: Any, place: str, strict: bool = True) -> Any:
    try:
        return check_value(name, value, strict)
    except UsageError as fault:
        raise UsageError(f"{place}: {fault.what}", fault.hint) from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _read_env(env: Mapping[str, str]) -> dict[str, Any]:
    """The STRATA_* variables that are settings, parsed. One that is nearly a setting's name is a typing error; others
    may belong to another program of that name and are left alone."""
    known = (*CHOICES, *ENGINE_FIELDS, *SAMPLING_FIELDS)
    values = {}
    for variable, text in env.items():
        name = variable.removeprefix(ENV_PREFIX).lower()
        if not variable.startswith(ENV_PREFIX) or name in PROCESS_ENV:
            continue
        if name in known:
            values[name] = _text(name, _checked(name, text, variable, strict=False))
        elif difflib.get_close_matches(name, known, n=1, cutoff=0.85):
            upper = (ENV_PREFIX + n.upper() for n in known)
            raise UsageError(unknown_name("environment variable", variable, upper), "unset it or correct its name")
    return values


def _read_config(path: Path) -> tuple[Layer, dict[str, str]]:
    """Settings and aliases of the user config; empty where there is none."""
    place = str(path)
    table = _read_toml(path.read_text(encoding="utf-8"), place) if path.is_file() else {}
    aliases = table.pop("aliases", {})
    try:
        aliases = msgspec.convert(aliases, dict[str, str])
    except msgspec.ValidationError as fault:
        raise UsageError(f"{place}: [aliases]: {fault}", 'an alias is a line such as big = "org/repo"') from None
    return _settings_layer(table, place, (*CHOICES, *ENGINE_FIELDS)), aliases


def _settings_layer(table: dict[str, Any], place: str, top: tuple[str, ...]) -> Layer:
    """A parsed TOML table as a layer, all of its names known and all values checked."""
    sampling = table.pop("sampling", {})
    if not isinstance(sampling, dict):
        raise UsageError(f"{place}: sampling = {sampling!r} is not a table", "write it as [sampling]")
    for values, names, section in ((table, top, "setting"), (sampling, SAMPLING_FIELDS, "sampling setting")):
        for name, value in values.items():
            if name not in names:
                raise UsageError(f"{place}: {unknown_name(section, name, names)}", f"known: {', '.join(names)}")
            _checked(name, value, place)
    return Layer({**table, **sampling}, lambda _: place)


def _read_toml(text: str, place: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise UsageError(f"{place}: not valid TOML: {fault}") from None


def _show(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
