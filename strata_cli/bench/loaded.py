"""One set of weights for many engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from strata_cli.config import EngineConfig
from strata_cli.session import Checkpoint

if TYPE_CHECKING:
    import torch

    from strata_cli.engine.engine import Engine
    from strata_cli.model.weights import Weights


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights of a checkpoint on a device, and the engines made of them."""

    checkpoint: Checkpoint
    weights: "Weights"
    device: "torch.device"
    counts: Mapping[int, int] | None

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: EngineConfig) -> Self:
        """Load what `config` asks for: its device, dtype and grafted MTP head.

        Raises UsageError for what the checkpoint or the machine cannot honour.
        """
        from strata_cli.engine.build import load_weights  # imports torch, so not before input was checked
        from strata_cli.engine.drafters.vocab import read_counts

        weights, device = load_weights(checkpoint.path, checkpoint.model_config, config)
        return cls(checkpoint, weights, device, read_counts(checkpoint.path))

    def engine(self, config: EngineConfig) -> "Engine":
        """An engine with these settings around the weights."""
        from strata_cli.engine.build import assemble

        of = self.checkpoint
        counts = dict(self.counts) if self.counts is not None else None
        return assemble(
            self.weights, of.model_config, config, of.eos_token_ids, self.device, vocab=of.vocab, counts=counts
        )
