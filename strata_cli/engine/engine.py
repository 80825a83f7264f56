"""The engine: requests in, events out. `step()` is the whole story; the methods below it are its chapters."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from strata_cli.config import EngineConfig
from strata_cli.engine.cache.kv import KVCache
from strata_cli.engine.cache.prefix import PrefixCache
from strata_cli.engine.drafters import Drafter
from strata_cli.engine.fuse import Downgrades, Fuse
from strata_cli.engine.life import Life, Slot
from strata_cli.engine.planning import Outcome, Planner
from strata_cli.engine.records import step_record
from strata_cli.engine.runner import Runner
from strata_cli.engine.scheduler import Scheduler
from strata_cli.engine.seating import Seating
from strata_cli.engine.seeds import fresh_seed
from strata_cli.engine.types import Event, Finished, Request, Tokens, WindowDone
from strata_cli.engine.verdict import Judge
from strata_cli.engine.window import Share, SlotVerdict, WindowVerdict
from strata_cli.engine.windows import Ran, Windows
from strata_cli.errors import UsageError
from strata_cli.model.memory import MemoryPlan


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of (`build` makes them). drafters: by name, those there are. kernels: which sibling runs
    what, by (block, formats of its weights).
    """

    runner: Runner
    kv: KVCache
    planner: Planner
    drafters: dict[str, Drafter]
    prefix: PrefixCache | None
    memory: MemoryPlan
    kernels: Mapping[tuple[str, tuple[str, ...]], str]
    downgrades: Downgrades
    blame: Callable[[], str] = field(default=lambda: "")


class Engine:
    """Up to `config.batch` requests side by side, drafted together, verified together.

    Args:
        parts: the model on its buffers, caches, drafters, planner.
        config: the settings; ctx: the most tokens of one request, prompt and completion.
        eos: token ids that end a request. vocab: token ids there are.
        clock: seconds.
    """

    def __init__(
        self,
        parts: Parts,
        config: EngineConfig,
        ctx: int,
        eos: Sequence[int],
        vocab: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.parts, self.runner, self.kv, self.prefix = parts, parts.runner, parts.kv, parts.prefix
        self.drafters, self.planner, self.memory = parts.drafters, parts.planner, parts.memory
        self.config, self.ctx, self.vocab, self.clock = config, ctx, vocab, clock
        self.judge = Judge(frozenset(eos), parts.blame)
        self.scheduler: Scheduler[Life] = Scheduler(
            config.prefill_policy,
            config.prefill_chunk,
            config.max_batched_tokens,
            config.gather_ms / 1000,
            config.batch_groups,
        )
        self.seating = Seating(
            config.batch,
            self.scheduler,
            parts.runner,
            parts.kv,
            parts.prefix,
            lambda: (self.planner, *self.drafters.values()),
            clock,
        )
        self.reported, self.fuse = parts.downgrades, Fuse(parts.downgrades)
        self.windows = Windows(
            config, parts.runner, parts.planner, parts.drafters, self.seating, self.fuse, self._timed
        )
        self.events: list[Event] = []
        self.ms: dict[str, float] = defaultdict(float)  # of this window's phases
        self.born = clock()

    @property
    def seats(self) -> list[Slot | None]:
        return self.seating.seats

    # ------------------------------------------------------------------ what callers use

    def submit(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never run: too long for the context, asking for what is not
        there, or called like one that has not ended.
        """
        self._refuse(request)
        seed = request.params.seed if request.params.seed is not None else fresh_seed()
        now, room, most = self.clock(), self.ctx - len(request.prompt), request.params.max_tokens
        limit = room if most is None else min(room, most)
        self.scheduler.add(Life(request, seed, now, limit, list(request.prompt)), now)

    def _refuse(self, request: Request) -> None:
        who, params = f"request {request.id}", request.params
        if self._find(request.id) is not None:
            raise UsageError(f"{who}: another one of this id waits or runs", "an id of its own for each request")
        if len(request.prompt) >= self.ctx:
            what = f"{who}: the prompt has {len(request.prompt)} tokens, the context {self.ctx}"
            raise UsageError(what, "raise --ctx or shorten the prompt")
        # with drafts off nobody drafts, whatever the request says: its text is the same
        if self.drafters and params.drafter not in (None, "off") and params.drafter not in self.drafters:
            raise UsageError(f"{who}: no drafter {params.drafter!r} here", "drafter off, or another model")
        if params.spec is not None and params.spec > self.config.spec:
            raise UsageError(f"{who}: spec {params.spec} is above the engine's {self.config.spec}", "raise --spec")
        if bad := [t for t in (*request.prompt, *dict(params.logit_bias)) if not 0 <= t < self.vocab]:
            raise UsageError(f"{who}: token id {bad[0]} is not in the vocabulary of {self.vocab}")

    def _find(self, request_id: str) -> Life | None:
        return next((life for life in self.seating.lives() if life.request.id == request_id), None)

    def cancel(self, request_id: str) -> bool:
        """End a request now, waiting or running, with what it has; False when there is no such request."""
        life = self._find(request_id)
        if life is None:
            return False
        self.scheduler.remove(lambda waiting: waiting is life)
        self._finish(life, "cancelled")
        return True

    def pause(self, paused: bool = True) -> None:
        """Admit nobody from now on (running requests go on)."""
        self.scheduler.paused = paused

    @property
    def has_work(self) -> bool:
        """Whether a step would bring anything, now or after `idle_s`: events, running requests, or waiting ones (unless
        paused).
        """
        waiting = bool(self.scheduler.queue) and not self.scheduler.paused
        return bool(self.events) or waiting or any(self.seats)

    def idle_s(self) -> float:
        """Seconds for which nothing can happen: requests are held until more come. 0 when a step would do something."""
        if self.events or any(self.seats):
            return 0.0
        return max(0.0, self.scheduler.held_s(self.seats.count(None), self.clock()))

    @property
    def downgrades(self) -> list[str]:
        """What is turned down, a line each."""
        return self.reported.lines()

    def close(self) -> None:
        """Cancel everything; the events are dropped with the engine."""
        for life in self.seating.lives():
            self.cancel(life.request.id)

    # ------------------------------------------------------------------ one step

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Admit, plan, draft, verify, commit, emit: one window. Returns what happened, in order. Never waits."""
        begun = self.clock()
        self.ms.clear()
        with self.fuse.telling("while a request took its seat"):
            self.events += self.seating.admit()
            plan = self.windows.plan()
        if plan.busy:
            done = self._commit(self.windows.run(plan))
            self._emit(done, begun)
        events, self.events = [*self.reported.take(), *self.events], []
        return events

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = self.clock()
        try:
            yield
        finally:
            self.ms[phase] += (self.clock() - begun) * 1000

    def _commit(self, ran: Ran) -> WindowVerdict:
        """The longest confirmed prefix of every slot becomes part of it; nothing of a rejected draft is left
        anywhere.
        """
        plan, learned = ran.layout.plan, []
        with self._timed("commit"):
            with self.fuse.telling("while log probabilities were worked out"):
                verdicts = self.judge.verdicts(ran.layout, ran.outcomes)
            for share, verdict in zip(plan.shares, verdicts):
                if share.L and verdict.tokens:
                    learned.append(Outcome(share.slot.index, share.L, verdict.judged, verdict.held))
                if share.rows:
                    self._commit_share(share, verdict)
            self.windows.read_prompts()
        bucket, chained = ran.layout.rows.padded, ran.chained
        done = WindowVerdict(plan, verdicts, bucket, ran.outcomes.experts, chained.steps, chained.drafts)
        if learned:
            self._learn(done, learned)
        return done

    def _commit_share(self, share: Share, verdict: SlotVerdict) -> None:
        """What a share brought becomes part of its slot."""
        slot, life = share.slot, share.slot.life
        failed = verdict.error is not None and not verdict.tokens
        if share.read:
            self.scheduler.read(slot.index, share.read)
            if self.prefix is not None:
                keep = self.prefix.drop if failed else partial(self.prefix.keep, slot)
                keep(share.captures)
        elif not failed:
            life.spec.record(share.drafts, verdict.judged, verdict.held, len(verdict.tokens))
        kept = share.read or len(verdict.tokens)
        slot.length += kept
        self.runner.recurrent.commit(slot.index, 0 if share.read else kept)
        life.logprobs += verdict.logprobs
        for drafter in self.windows.drafting().values():
            drafter.committed(slot, verdict.tokens)

    def _learn(self, done: WindowVerdict, learned: Sequence[Outcome]) -> None:
        """The planner sees what the window brought and what it cost."""
        ms, shares = self.ms, done.plan.shares
        alike = not any(s.read for s in shares)  # prompt rows would teach a wrong cost
        self.planner.record(
            learned,
            depth=done.depth,
            drafts=done.made,
            draft_ms=ms["draft"],
            verify_ms=ms["verify"] + ms["sample"] if alike else None,
            other_ms=ms["plan"] + ms["commit"] if alike else None,
            rows=sum(s.L for s in shares),
            ctx_total=sum(s.slot.length for s in shares if s.L),
        )
        if (warning := self.planner.warning()) is not None:
            self.reported.add("acceptance", warning)

    def _emit(self, done: WindowVerdict, begun: float) -> None:
        """Tokens, endings and the window's record, all at the moment they leave."""
        now = self.clock()
        record = step_record(done, self.ms, now - self.born, (now - begun) * 1000)
        for name, count in self.seating.prefix_use.items():
            setattr(record, name, count)
        self.seating.prefix_use.clear()
        record.chain_off, record.downgrades = self.fuse.why, self.downgrades
        for share, verdict in zip(done.plan.shares, done.verdicts):
            life = share.slot.life
            if verdict.tokens:
                life.stamp(now)
                self.events.append(Tokens(life.request.id, share.slot.index, verdict.tokens))
            if verdict.finish or verdict.error:
                self._finish(life, verdict.finish or "error", verdict.error)
        self.events.append(WindowDone(record))

    def _finish(self, life: Life, reason: str, error: str | None = None) -> None:
        """The request is done; its seat is free."""
        index = life.seat.index if life.seat is not None else None
        self.seating.vacate(life)
        life.done = True
        self.events.append(Finished(life.request.id, index, life.result(reason, self.clock(), error)))
