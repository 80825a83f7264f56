"""`strata` in this process with a made-up engine."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import strata_cli.commands.run
from strata_cli import app
from tests.cli.fake import FakeEngine, make_model
from tests.cli.talk import talk  # noqa: F401  # a fixture of the tests here


@dataclass
class Ran:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Strata:
    """Runs command lines; `engines` are those that were built, `engine` is what the next ones are made with."""

    run: Callable[..., Ran]
    model: Path
    engines: list[FakeEngine] = field(default_factory=list)

    def __call__(self, *args: object, env: dict[str, str] | None = None) -> Ran:
        return self.run(args, env or {})


@pytest.fixture(autouse=True)
def _own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's user config, environment or model cache."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("STRATA_MODEL", "STRATA_PROFILE", "STRATA_STEP_STATS", "STRATA_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def strata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Strata:
    model = make_model(tmp_path / "model")

    def run(args: Sequence[object], env: dict[str, str]) -> Ran:
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            code = app.run([str(a) for a in args])
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode(), err.decode())

    tool = Strata(run, model)

    def load(checkpoint, config):
        session = strata_cli.session.Session(checkpoint, FakeEngine(checkpoint, config))
        tool.engines.append(session.engine)
        return session

    monkeypatch.setattr(strata_cli.commands.run, "load_session", load)
    return tool


@pytest.fixture
def prompts(tmp_path: Path) -> Callable[..., Path]:
    """Writes a prompts file: lines as objects, or as the text or bytes they are."""

    def write(*lines: object, name: str = "prompts.jsonl") -> Path:
        path = tmp_path / name
        texts = [x if isinstance(x, bytes) else (x if isinstance(x, str) else json.dumps(x)).encode() for x in lines]
        path.write_bytes(b"".join(text + b"\n" for text in texts))
        return path

    return write
