"""From a checkpoint whose input has been checked to weights and engines: the one place that calls the builder."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.types import Request
from strata_cli.errors import UsageError
from strata_cli.model.families import ModelConfig
from strata_cli.session.checkpoint import Checkpoint, Messages
from strata_cli.session.drive import AnyEngine
from strata_cli.text.template import ChatTemplate
from strata_cli.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from strata_cli.engine.build import Loaded
    from strata_cli.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs: its name, and the UUID of the GPU (None on the CPU)."""

    name: str = "cpu"
    gpu: str | None = None

    @classmethod
    def of(cls, device: "torch.device") -> Self:
        if device.type != "cuda":
            return cls(device.type)
        import torch

        properties = torch.cuda.get_device_properties(device)
        return cls(properties.name, f"GPU-{properties.uuid}")


@dataclass(frozen=True, slots=True)
class Session:
    """A checkpoint with its engine; a context manager that closes it."""

    checkpoint: Checkpoint
    engine: AnyEngine
    device: Device = field(default_factory=Device)

    @property
    def tokenizer(self) -> Tokenizer:
        if self.checkpoint.tokenizer is None:
            raise UsageError(f"{self.checkpoint.name} has no tokenizer.json", "only `strata run` takes token ids")
        return self.checkpoint.tokenizer

    @property
    def template(self) -> ChatTemplate:
        if self.checkpoint.template is None:
            raise UsageError(f"{self.checkpoint.name} has no chat template", "`strata run` takes plain prompts")
        return self.checkpoint.template

    @property
    def model_config(self) -> ModelConfig:
        return self.checkpoint.model_config

    @property
    def defaults(self) -> SamplingParams:
        return self.checkpoint.defaults

    @property
    def planned_bytes(self) -> int:
        """What the model was planned to take: weights, caches, buffers."""
        return self.engine.memory.total_bytes

    def request(self, id: str, prompt: str | Sequence[int] | Messages, params: SamplingParams) -> Request:
        """A request for text, token ids or messages."""
        return self.checkpoint.request(id, self.checkpoint.prompt(prompt), params)

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The weights of a checkpoint on a device, which any number of engines may share."""

    checkpoint: Checkpoint
    loaded: "Loaded"

    @property
    def device(self) -> Device:
        return Device.of(self.loaded.device)

    def engine(self, config: EngineConfig) -> "Engine":
        """An engine of its own with these settings."""
        return self.loaded.engine(config, self.checkpoint.eos_token_ids, self.checkpoint.vocab)


def load_model(checkpoint: Checkpoint, config: EngineConfig) -> LoadedModel:
    """Load what `config` asks for of a checkpoint (seconds to minutes): its device and grafted MTP head.

    Raises UsageError for what the checkpoint or the machine cannot honour, StrataError for a broken checkpoint.
    """
    from strata_cli.engine.build import load  # imports torch, so not before input was checked

    return LoadedModel(checkpoint, load(checkpoint.path, checkpoint.model_config, config))


def load_session(checkpoint: Checkpoint, config: EngineConfig) -> Session:
    """Load the weights of a checkpoint whose input has been checked, and put one engine around them."""
    model = load_model(checkpoint, config)
    engine = model.engine(config)
    if os.environ.get("STRATA_DEBUG") == "1":
        for (what, formats), sibling in engine.parts.kernels.items():
            print(f"{what:<12} {' '.join(formats):<24} {model.device.name}: {sibling}", file=sys.stderr)
    return Session(checkpoint, engine, model.device)
