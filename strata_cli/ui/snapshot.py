"""One moment of a run, as plain data: what the screen shows. No torch."""

from dataclasses import dataclass

from strata_cli.engine.tally import SlowSlot
from strata_cli.ui.gpu import NOTHING, Gauges

RECENT = 32  # windows that "now" means for a slot
NOW_S = 5  # whole seconds that "now" means for the totals
HISTORY_S = 60


@dataclass(frozen=True, slots=True)
class Header:
    """What does not change during a run.

    `settings` are short texts such as "spec 4"; `planned_bytes`: the memory plan's sum; `gpu` as GpuMeter takes it.
    """

    model: str
    format: str
    device: str
    batch: int
    spec: int
    settings: tuple[str, ...] = ()
    planned_bytes: int | None = None
    gpu: str | int | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """Known of a request before it runs, in tokens."""

    prompt_tokens: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SlotLine:
    """One row of the screen. `state`: free, prompt, decode or sat out."""

    slot: int
    state: str = "free"
    request: str = ""
    tokens: int = 0
    max_tokens: int | None = None
    prompt_done: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    ctx: int = 0
    L: int = 0
    reason: str = ""
    keeps: tuple[int, ...] = ()  # the last RECENT windows, oldest first
    acceptance: float | None = None  # over the same windows
    mean_keeps: float | None = None
    per_position: tuple[float, ...] = ()  # of the whole request
    conditional: tuple[float | None, ...] = ()
    reasons: tuple[tuple[str, int], ...] = ()
    tok_per_s: float | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a run. Rates are of the last NOW_S seconds unless they say otherwise."""

    header: Header
    gauges: Gauges = NOTHING
    slots: tuple[SlotLine, ...] = ()
    slow: SlowSlot | None = None
    elapsed_s: float = 0.0
    tokens: int = 0
    tok_per_s: float | None = None
    history: tuple[float, ...] = ()  # tokens in each of the last whole seconds, oldest first
    windows_per_s: tuple[tuple[str, float], ...] = ()
    acceptance: float | None = None
    mean_acceptance_length: float | None = None
    mean_L: float | None = None
    phases: tuple[tuple[str, float], ...] = ()  # shares of the window's time
    cached_tokens: int = 0  # of the whole run
    cached_requests: int = 0
    total: int = 0
    done: int = 0
    failed: int = 0
    active: int = 0
    eta_s: float | None = None
    downgrades: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    paused: bool = False
    stopping: bool = False
    detail: int | None = None  # the slot shown in detail
