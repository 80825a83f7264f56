"""One set of weights for many engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from strata_cli.config import EngineConfig
from strata_cli.errors import UsageError
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
        from strata_cli.engine import build  # imports torch, so not before input was checked
        from strata_cli.engine.drafters.vocab import read_counts
        from strata_cli.model.weights.safetensors import open_checkpoint

        device = build.pick_device(config.device)
        if device.type == "cpu":
            build.settle_threads(checkpoint.model_config)
        files = open_checkpoint(checkpoint.path)
        graft = open_checkpoint(Path(config.mtp)) if config.mtp else None
        found = files.check(checkpoint.model_config, graft)
        if config.batch_mtp and not found.has_mtp:
            what = f"{checkpoint.name} has no MTP tensors, and --batch-mtp asks for them"
            raise UsageError(what, "drop --batch-mtp, or take a head from another checkpoint with --mtp PATH")
        weights = files.load(checkpoint.model_config, build.pick_dtype(config.dtype, device), device, graft)
        return cls(checkpoint, weights, device, read_counts(checkpoint.path))

    def engine(self, config: EngineConfig) -> "Engine":
        """An engine with these settings around the weights."""
        from strata_cli.engine.build import assemble

        of = self.checkpoint
        counts = dict(self.counts) if self.counts is not None else None
        return assemble(
            self.weights, of.model_config, config, of.eos_token_ids, self.device, vocab=of.vocab, counts=counts
        )
