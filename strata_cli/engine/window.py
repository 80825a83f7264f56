"""A window: a frozen plan before the forward, a frozen verdict after it; nothing in between is written into either.
No torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Choice
from strata_cli.engine.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class Share:
    """A slot's part of a window: `read` prompt rows or `L` decode rows, never both; neither when it sits out.

    `depth`: drafts its chain makes at most, by `drafter`; `stop`: a draft less probable than this ends the chain.
    `captures`: (prompt length at which a prefix-cache entry ends, its place), rising.
    """

    slot: Slot
    read: int = 0
    L: int = 0
    reason: str = "prefill"
    depth: int = 0
    stop: float = 0.0
    drafter: str | None = None
    captures: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        return self.read + self.L

    @property
    def drafts(self) -> int:
        return max(self.L - 1, 0)

    @property
    def draws(self) -> int:
        """Rows that yield a token: all decode rows, and the last one of a prompt."""
        return self.L or int(0 < self.read == self.slot.finishes)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The shares of one group's slots, in slot order. `asks`: how many rows each gets is settled by what its drafts
    say of themselves.
    """

    group: int
    shares: tuple[Share, ...]
    asks: bool = False

    @property
    def busy(self) -> tuple[Share, ...]:
        return tuple(s for s in self.shares if s.rows)

    @property
    def ordered(self) -> tuple[Share, ...]:
        """The busy shares as their rows lie in the forward: decode rows first."""
        return tuple(sorted(self.busy, key=lambda s: s.read > 0))

    @property
    def drafting(self) -> tuple[Share, ...]:
        return tuple(s for s in self.shares if s.depth)

    @property
    def kind(self) -> str:
        """Named in design section 2."""
        if any(s.read for s in self.shares):
            return "mixed" if any(s.L for s in self.shares) else "prefill"
        return "chain" if any(s.drafts for s in self.shares) else "batch"

    def by_drafter(self, name: str, drafter: Callable[[Slot], str | None]) -> tuple[list[Share], list[Slot]]:
        """The shares that this drafter drafts for, and the decoding slots that it may draft for another time."""
        others = [s.slot for s in self.busy if s.L and not s.depth and drafter(s.slot) == name]
        return [s for s in self.drafting if s.drafter == name], others

    def settled(self, choices: Mapping[int, Choice]) -> "WindowPlan":
        """The plan once its drafts are made: the rows that each drafting slot takes."""

        def settle(share: Share) -> Share:
            choice = choices.get(share.slot.index)
            return share if choice is None else replace(share, L=choice.L, reason=choice.reason)

        return replace(self, shares=tuple(map(settle, self.shares)), asks=False)

    def undrafted(self) -> "WindowPlan":
        """The plan of a window whose drafts failed: one row a decoding slot; prompts begin again in the next one."""

        def plain(share: Share) -> Share:
            if share.L:
                return replace(share, L=1, reason="fuse", depth=0)
            return replace(share, read=0, captures=(), depth=0)

        return replace(self, shares=tuple(map(plain, self.shares)), asks=False)


@dataclass(frozen=True, slots=True)
class SlotVerdict:
    """What became of a share: the tokens its rows yield, of the judged drafts those that held; or why it failed."""

    tokens: tuple[int, ...] = ()
    judged: int = 0
    held: int = 0
    finish: str | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """What became of a window, share by share in the plan's order. `bucket`: rows after padding; `experts`: distinct
    ones that its rows chose, the most over the layers; `depth`, `made`: steps of its chain and drafts made in them.
    """

    plan: WindowPlan
    verdicts: tuple[SlotVerdict, ...]
    bucket: int
    experts: int | None
    depth: int
    made: int
