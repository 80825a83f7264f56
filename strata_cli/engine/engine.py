"""The engine: requests in, events out. `step()` is the whole story; the methods below it are its chapters."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from strata_cli.config import EngineConfig
from strata_cli.engine.cache.prefix import PrefixCache
from strata_cli.engine.drafters import Drafter, Proposal, Seen, Wish
from strata_cli.engine.fuse import Downgrades, is_out_of_memory
from strata_cli.engine.judge import Judge
from strata_cli.engine.parts import Part, Window
from strata_cli.engine.penalties import PenaltyCounts
from strata_cli.engine.planner import Choice, Outcome, Planner, SlotView
from strata_cli.engine.records import step_record
from strata_cli.engine.runner import Runner
from strata_cli.engine.scheduler import Scheduler
from strata_cli.engine.seeds import fresh_seed
from strata_cli.engine.slot import Slot
from strata_cli.engine.types import Event, Finished, Request, Started, Tokens, WindowDone
from strata_cli.errors import StrataError, UsageError


class Engine:
    """Up to `config.batch` requests side by side, drafted together, verified together.

    Args:
        runner: the model, its MTP head and the slots' cache.
        drafters: by name, those there are ("mtp", "ngram"); a request without one decodes one token a window.
        planner: chooses L.
        config: the settings; ctx: the most tokens of one request, prompt and completion.
        eos: token ids that end a request.
        prefix: the prefix cache, or None. downgrades: what was turned down while loading.
        clock: seconds.
    """

    def __init__(
        self,
        runner: Runner,
        drafters: dict[str, Drafter],
        planner: Planner,
        config: EngineConfig,
        ctx: int,
        eos: Sequence[int],
        prefix: PrefixCache | None = None,
        downgrades: Downgrades | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.runner, self.cache, self.drafters, self.planner = runner, runner.cache, drafters, planner
        self.config, self.ctx, self.eos, self.prefix, self.clock = config, ctx, frozenset(eos), prefix, clock
        self.penalties = PenaltyCounts(runner.model.head.shape[1], runner.device)
        self.judge = Judge(runner, self.penalties, self.eos, config.accept == "rejection")
        self.scheduler: Scheduler[Slot] = Scheduler(
            config.prefill_policy,
            config.prefill_chunk,
            config.max_batched_tokens,
            config.gather_ms / 1000,
            config.batch_groups,
        )
        self.seats: list[Slot | None] = [None] * config.batch
        self.reported = downgrades or Downgrades()
        self.chain_off: str | None = None
        self.events: list[Event] = []
        self.admissions = 0
        self.hits = self.misses = self.hit_tokens = 0  # of the prefix cache, since the last window's record
        self.born = clock()
        self.planned_bytes = 0  # weights and caches, as the screen shows them; set by who loaded them

    # ------------------------------------------------------------------ what callers use

    def submit(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it can never run: too long for the context, or asking for what is
        not there.
        """
        room = self.ctx - len(request.prompt)
        if room < 1:
            what = f"request {request.id}: the prompt has {len(request.prompt)} tokens, the context {self.ctx}"
            raise UsageError(what, "raise --ctx or shorten the prompt")
        params = request.params
        # with drafts off nobody drafts, whatever the request says: its text is the same
        if self.drafters and params.drafter not in (None, "off") and params.drafter not in self.drafters:
            raise UsageError(
                f"request {request.id}: no drafter {params.drafter!r} here", "drafter off, or another model"
            )
        if params.spec is not None and params.spec > self.config.spec:
            raise UsageError(
                f"request {request.id}: spec {params.spec} is above the engine's {self.config.spec}", "raise --spec"
            )
        if bad := [t for t in (*request.prompt, *dict(params.logit_bias)) if not 0 <= t < self.runner.model.vocab]:
            raise UsageError(
                f"request {request.id}: token id {bad[0]} is not in the vocabulary of {self.runner.model.vocab}"
            )
        seed = params.seed if params.seed is not None else fresh_seed()
        now = self.clock()
        limit = min(room, params.max_tokens) if params.max_tokens is not None else room
        self.scheduler.add(Slot(request, seed, now, limit, list(request.prompt)), now)

    def cancel(self, request_id: str) -> bool:
        """End a request now, waiting or running, with what it has; False when there is no such request."""
        slot = self.scheduler.remove(lambda s: s.request.id == request_id)
        if slot is None:
            slot = next((s for s in self.seats if s is not None and s.request.id == request_id), None)
        if slot is None:
            return False
        self._finish(slot, "cancelled")
        return True

    def pause(self, paused: bool = True) -> None:
        """Admit nobody from now on (running requests go on)."""
        self.scheduler.paused = paused

    @property
    def has_work(self) -> bool:
        """Whether a step would bring anything: events, running requests, or waiting ones (unless paused)."""
        waiting = bool(self.scheduler.queue) and not self.scheduler.paused
        return bool(self.events) or waiting or any(self.seats)

    def idle_s(self) -> float:
        """Seconds for which nothing can happen (a `gather` that holds requests); 0 when a step would do something."""
        return 0.0 if self.events or any(self.seats) else self.scheduler.held_s(self.seats.count(None), self.clock())

    @property
    def downgrades(self) -> list[str]:
        """What is turned down, a line each."""
        return self.reported.lines()

    def close(self) -> None:
        """Cancel everything; the events are dropped with the engine."""
        for slot in [*(w.item for w in self.scheduler.queue), *self.seats]:
            if slot is not None:
                self.cancel(slot.request.id)

    # ------------------------------------------------------------------ one step

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Admit, plan, draft, verify, commit, emit: one window. Returns what happened, in order."""
        begun = self.clock()
        self._admit()
        window = self._plan()
        while True:
            try:
                self._draft(window)
                hidden = self._verify(window)
                break
            except (RuntimeError, MemoryError) as error:
                self._undo(window, error)
        self._commit(window, hidden)
        self._emit(window, begun)
        events, self.events = [*self.reported.take(), *self.events], []
        return events

    def _admit(self) -> None:
        """Free slots take waiting requests, in order, as far as pages for their prompts go; the prefix cache is asked
        what it already holds of each.
        """
        free = [i for i, seat in enumerate(self.seats) if seat is None]
        for seat in free[: self.scheduler.admissible(len(free), self.clock())]:
            slot = self.scheduler.queue[0].item
            request = slot.request
            entry = self.prefix.match(request.prompt) if self.prefix is not None else None
            if entry is not None and self.prefix is not None:
                self.prefix.adopt(seat, entry)
            if not self._make_room(seat, slot.to_read + 1 - self.cache.lengths[seat]):  # and one row to go on with
                self.cache.release(seat)
                break
            self.scheduler.queue.popleft()
            slot.index, self.seats[seat] = seat, slot
            self.admissions += 1
            slot.entered = self.admissions
            slot.admitted = self.clock() if slot.admitted is None else slot.admitted
            if self.prefix is not None:
                self.hits, self.misses = self.hits + (entry is not None), self.misses + (entry is None)
                self.hit_tokens += self.cache.lengths[seat]
            if slot.generated == 0:
                slot.cached_tokens = self.cache.lengths[seat]
            for drafter in self.drafters.values():
                drafter.start(seat, entry.hidden if entry is not None else None)
            self.penalties.start(seat, request.params, request.prompt, slot.tokens[len(request.prompt) :])
            self.planner.start(seat)
            self.scheduler.start(seat, self.cache.lengths[seat], slot.to_read)
            self.events.append(Started(request.id, seat, slot.cached_tokens))

    def _make_room(self, seat: int, rows: int) -> bool:
        """Pages for `rows` more tokens of a seat; where they run short, cached prefixes go."""
        while not self.cache.reserve(seat, rows):
            if self.prefix is None or not self.prefix.evict():
                return False
        return True

    def _plan(self) -> Window:
        """Who reads how much of its prompt and who gets how many decode rows, as far as pages reach."""
        begun = self.clock()
        turn = self.scheduler.next_group([s.index for s in self.seats if s is not None])
        seated = {i: s for i in turn if (s := self.seats[i]) is not None}
        reads = self.scheduler.prompt_rows(lambda index: index in seated)
        waiting = {r.slot for r in self.scheduler.reading}
        decoding = [s for s in seated.values() if s.index not in waiting]
        parts = {index: Part(slot, read=reads.get(index, 0)) for index, slot in seated.items()}
        if self.scheduler.excludes_decoding(list(reads.values())):
            for slot in decoding:
                parts[slot.index].reason = "sitout"
        elif decoding:
            views = [self._view(s) for s in decoding]
            for view, choice in zip(views, self.planner.choose(views)):
                part = parts[view.slot]
                part.L, part.reason, part.most = choice.L, choice.reason, view.limit
        for part in sorted(parts.values(), key=lambda p: p.slot.entered):
            self._reserve(part, parts)
        for part in parts.values():
            if part.L > 1 and not self.cache.reserve(part.slot.index, part.most):
                part.most = part.L
            if part.read and self.prefix is not None:
                at, slot = self.cache.lengths[part.slot.index], part.slot
                part.capture = self.prefix.places(len(slot.request.prompt), at, part.read, slot.request.turn)
            if part.slot in decoding:
                part.slot.missed = 0 if part.L else part.slot.missed + 1
        window = Window(self.scheduler.group, list(parts.values()))
        window.ms["plan"] += (self.clock() - begun) * 1000
        return window

    def _drafter(self, slot: Slot) -> str | None:
        """The drafter of a slot, by name; None when it drafts no more."""
        name = slot.request.params.drafter or self.config.drafter
        return name if name in self.drafters and self.chain_off is None else None

    def _view(self, slot: Slot) -> SlotView:
        """What the planner may know of a slot."""
        params = slot.request.params
        spec = self.config.spec if params.spec is None else params.spec
        limit, why = min(spec + 1, slot.left), "user" if slot.left > spec else "fits"
        if self._drafter(slot) is None:
            limit, why = 1, "nodraft" if self.chain_off is None else "fuse"
        return SlotView(
            slot=slot.index,
            request=slot.request.id,
            ctx=self.cache.lengths[slot.index],
            limit=limit,
            limit_reason=why,
            missed=slot.missed,
            decoded=slot.generated,
        )

    def _reserve(self, part: Part, parts: dict[int, Part]) -> None:
        """Pages for the part's rows; where they run short drafts go first, then the youngest request waits again."""
        while part.rows and part.slot.index in parts and not self._make_room(part.slot.index, part.rows):
            if part.L > 1:
                part.L, part.reason = 1, "budget"
                continue
            victim = max((s for s in self.seats if s is not None), key=lambda s: s.entered)
            parts.pop(victim.index, None)
            self._leave(victim)
            self.scheduler.put_back(victim, self.clock())

    def _draft(self, window: Window) -> None:
        """One batched chain per drafter for all slots with L > 1; each slot for as many steps as the planner says."""
        begun = self.clock()
        wishes: dict[str, list[Wish]] = {}
        parts = {p.slot.index: p for p in window.decoding if p.L > 1}
        for part in parts.values():
            slot = part.slot
            name = self._drafter(slot)
            assert name is not None
            wishes.setdefault(name, []).append(
                Wish(slot.index, part.most - 1, slot.tokens, partial(self.judge.draw, slot))
            )
        for name, wanting in wishes.items():
            for index, proposal in self.drafters[name].propose(wanting, self.planner.go_on).items():
                parts[index].proposal = proposal
        made = [len(part.drafts) for part in parts.values()]
        window.depth, window.drafts = max(made, default=0), sum(made)
        for part in parts.values():
            choice = self.planner.settle(part.slot.index, Choice(part.L, part.reason), len(part.drafts))
            part.L, part.reason = choice.L, choice.reason
            part.proposal.cut(part.L - 1)
        window.ms["draft"] += (self.clock() - begun) * 1000

    def _verify(self, window: Window) -> Tensor | None:
        """One forward over all rows, then every row's own draw; nothing is committed. Returns hidden rows [R, D]."""
        parts = window.busy
        if not parts:
            return None
        begun = self.clock()
        rows, hidden = self.judge.verify(parts)
        window.bucket = rows.padded
        verified = self.clock()
        self.judge.sample(parts, hidden)
        window.ms["verify"] += (verified - begun) * 1000
        window.ms["sample"] += (self.clock() - verified) * 1000
        return hidden

    def _undo(self, window: Window, error: Exception) -> None:
        """Blow the fuse and make the window one without drafts; prompts that were being read start over.

        The recurrent state of decode rows is repeatable and keys and values are overwritten, so nothing else is to be
        undone.
        """
        if not is_out_of_memory(error):
            raise error
        if not any(p.L > 1 for p in window.parts) or self.chain_off is not None:
            what = f"memory ran out in a window without drafts: {str(error).splitlines()[0]}"
            raise StrataError(what, "lower --ctx, --batch or --max-batched-tokens") from error
        self._blow_fuse(error)
        window.depth = window.drafts = 0
        for part in window.parts:
            part.proposal, part.kept, part.held, part.judged, part.error = Proposal(), [], 0, 0, None
            if part.L:
                part.L, part.reason = 1, "fuse"
            if part.read:
                self.cache.release(part.slot.index)
                self.scheduler.stop(part.slot.index)
                self.scheduler.start(part.slot.index, 0, part.slot.to_read)
                part.read, part.capture, part.slot.cached_tokens = 0, [], 0
                for drafter in self.drafters.values():
                    drafter.start(part.slot.index, None)

    def _blow_fuse(self, error: BaseException) -> None:
        """No more drafts in this process."""
        self.chain_off = str(error).splitlines()[0] if str(error) else type(error).__name__
        self.reported.add("drafts off", self.chain_off)

    def _commit(self, window: Window, hidden: Tensor | None) -> None:
        """The longest confirmed prefix of every slot becomes part of it; nothing of a rejected draft is left
        anywhere.
        """
        begun = self.clock()
        seen, outcomes = [], []
        for part in window.busy:
            slot, index = part.slot, part.slot.index
            if part.error is not None:
                continue
            self.judge.accept(part)
            committed = part.read or len(part.kept)
            if part.read:
                self.cache.advance(index, part.read)
                self.scheduler.read(index, part.read)
            else:
                self.cache.commit(index, committed)
                slot.spec.record(len(part.drafts), part.judged, part.held, committed)
                outcomes.append(Outcome(index, part.L, part.judged, part.held))
            assert hidden is not None
            rows = hidden[part.row : part.row + committed]
            seen.append(Seen(index, slot.tokens, len(part.kept), rows, part.read > 0))
        self._observe(seen)
        for part in window.busy:
            if part.capture and self.prefix is not None and hidden is not None:
                shown = hidden[part.row : part.row + part.read] if self.chain_off is None else None
                self.prefix.keep(part.slot.index, part.slot.request.prompt, part.capture, part.read, shown)
        window.ms["commit"] += (self.clock() - begun) * 1000
        if outcomes:
            self._learn(window, outcomes)

    def _observe(self, seen: Sequence[Seen]) -> None:
        """Drafters see what was committed."""
        if self.chain_off is not None:
            return
        try:
            for drafter in self.drafters.values():
                drafter.observe(seen)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._blow_fuse(error)

    def _learn(self, window: Window, outcomes: Sequence[Outcome]) -> None:
        """The planner sees what the window brought and what it cost."""
        ms, alike = window.ms, not any(p.read for p in window.parts)  # prompt rows would teach a wrong cost
        self.planner.record(
            outcomes,
            depth=window.depth,
            drafts=window.drafts,
            draft_ms=ms["draft"],
            verify_ms=ms["verify"] + ms["sample"] if alike else None,
            other_ms=ms["plan"] + ms["commit"] if alike else None,
            rows=sum(p.L for p in window.decoding),
            ctx_total=sum(self.cache.lengths[p.slot.index] for p in window.decoding),
        )
        if (warning := self.planner.warning()) is not None:
            self.reported.add("acceptance", warning)

    def _emit(self, window: Window, begun: float) -> None:
        """Tokens, endings and the window's record, all at the moment they leave."""
        if not window.busy:
            return
        now = self.clock()
        record = step_record(window, self.cache.lengths, now - self.born, (now - begun) * 1000)
        record.prefix_hits, record.prefix_misses, record.prefix_hit_tokens = self.hits, self.misses, self.hit_tokens
        self.hits = self.misses = self.hit_tokens = 0
        record.chain_off, record.downgrades = self.chain_off, self.downgrades
        for part in window.busy:
            if part.kept:
                part.slot.stamp(now)
                self.events.append(Tokens(part.slot.request.id, part.slot.index, tuple(part.kept)))
            if part.finish or part.error:
                self._finish(part.slot, part.finish or "error", part.error)
        self.events.append(WindowDone(record))

    def _finish(self, slot: Slot, reason: str, error: str | None = None) -> None:
        """The request is done; its seat is free."""
        index = slot.index if slot.index >= 0 else None
        self._leave(slot)
        self.events.append(Finished(slot.request.id, index, slot.result(reason, self.clock(), error)))

    def _leave(self, slot: Slot) -> None:
        """Take a slot out of its seat; everything it held goes back."""
        if slot.index < 0:
            return
        self.cache.release(slot.index)
        self.scheduler.stop(slot.index)
        self.penalties.stop(slot.index)
        for drafter in self.drafters.values():
            drafter.start(slot.index, None)
        self.seats[slot.index], slot.index = None, -1
