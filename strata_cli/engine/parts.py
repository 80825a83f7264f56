"""One window, part by part: what each slot does in it and what came of that."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strata_cli.engine.drafters import Proposal
from strata_cli.engine.slot import Slot

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Part:
    """A slot's share of a window: `read` prompt rows or `L` decode rows, never both; neither when it sits out.

    `most`: decode rows it may take if drafting goes well, golden row included. `kept`: tokens that the window
    committed. `held`: drafts that were accepted of the `judged` ones.
    """

    slot: Slot
    read: int = 0
    L: int = 0
    most: int = 1
    reason: str = "prefill"
    proposal: Proposal = field(default_factory=Proposal)
    row: int = 0  # its first row in the forward
    capture: list[int] = field(default_factory=list)  # places of the prompt to keep for the prefix cache
    kept: list[int] = field(default_factory=list)
    held: int = 0
    judged: int = 0
    logits: "Tensor | None" = None  # [rows drawn, V], of the rows that yielded `kept`
    finish: str | None = None
    error: str | None = None

    @property
    def rows(self) -> int:
        return self.read + self.L

    @property
    def drafts(self) -> list[int]:
        return self.proposal.tokens


@dataclass(slots=True)
class Window:
    """The parts of one group's slots, in slot order, and the milliseconds of its phases.

    `depth`: steps of its chain; `drafts`: made in them, whether they got a row or not.
    """

    group: int
    parts: list[Part]
    ms: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("plan", "draft", "verify", "sample", "commit"), 0.0)
    )
    bucket: int = 0
    depth: int = 0
    drafts: int = 0

    @property
    def busy(self) -> list[Part]:
        return [p for p in self.parts if p.rows]

    @property
    def decoding(self) -> list[Part]:
        return [p for p in self.parts if p.L]

    @property
    def kind(self) -> str:
        """Named in design section 2."""
        if any(p.read for p in self.parts):
            return "mixed" if self.decoding else "prefill"
        return "chain" if any(p.drafts for p in self.parts) else "batch"
