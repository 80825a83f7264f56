"""From a checkpoint whose input has been checked to weights and engines: the one place that calls the builder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.types import Request
from strata_cli.errors import UsageError
from strata_cli.model.config import ModelConfig
from strata_cli.session.checkpoint import Checkpoint, Messages
from strata_cli.session.drive import AnyEngine
from strata_cli.text.template import ChatTemplate
from strata_cli.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from strata_cli.engine.engine import Engine
    from strata_cli.model.weights import Weights


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
        return self.engine.planned_bytes

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
    weights: "Weights"
    at: "torch.device"
    counts: Mapping[int, int] | None

    @property
    def device(self) -> Device:
        return Device.of(self.at)

    def engine(self, config: EngineConfig) -> "Engine":
        """An engine of its own with these settings."""
        from strata_cli.engine.build import assemble

        of = self.checkpoint
        counts = dict(self.counts) if self.counts is not None else None
        return assemble(self.weights, of.model_config, config, of.eos_token_ids, self.at, vocab=of.vocab, counts=counts)


def load_model(checkpoint: Checkpoint, config: EngineConfig) -> LoadedModel:
    """Load what `config` asks for of a checkpoint (seconds to minutes): its device, dtype and grafted MTP head.

    Raises UsageError for what the checkpoint or the machine cannot honour, StrataError for a broken checkpoint.
    """
    from strata_cli.engine.build import load_weights  # imports torch, so not before input was checked
    from strata_cli.engine.drafters.vocab import read_counts

    weights, device = load_weights(checkpoint.path, checkpoint.model_config, config)
    return LoadedModel(checkpoint, weights, device, read_counts(checkpoint.path))


def load_session(checkpoint: Checkpoint, config: EngineConfig) -> Session:
    """Load the weights of a checkpoint whose input has been checked, and put one engine around them."""
    model = load_model(checkpoint, config)
    return Session(checkpoint, model.engine(config), model.device)
