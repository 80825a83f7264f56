"""Verify and sample: one forward over all rows of a window, then each row's own draw, then which drafts hold."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from strata_cli.engine.parts import Part
from strata_cli.engine.penalties import PenaltyCounts
from strata_cli.engine.runner import Runner
from strata_cli.engine.sampling import Draw, distribution, logprobs, sample
from strata_cli.engine.slot import Slot
from strata_cli.engine.types import TokenLogprob
from strata_cli.engine.verify import accept_coupled, accept_rejection
from strata_cli.model.rows import Rows, Segment

RowWatch = Callable[[str, int, Tensor], None]  # (request id, position of the token, its row of logits [V])


class Judge:
    """`watch`, where set, sees the unprocessed logits of every committed token's row (for `strata parity`)."""

    def __init__(self, runner: Runner, penalties: PenaltyCounts, eos: Collection[int], rejection: bool):
        self.runner, self.penalties, self.eos, self.rejection = runner, penalties, eos, rejection
        self.watch: RowWatch | None = None

    def draw(self, slot: Slot, position: int, drafts: Sequence[int]) -> Draw:
        """The draw of the token at `position`, after `drafts` that are not committed yet."""
        return self.penalties.draw(slot.index, slot.request.params, slot.seed, position, drafts)

    def verify(self, parts: Sequence[Part]) -> tuple[Rows, Tensor]:
        """Run the model over the rows of all parts: their layout and hidden rows [R, D]. Sets each part's first row."""
        segments = []
        lengths = self.runner.cache.lengths
        for part in parts:
            at, tokens = lengths[part.slot.index], part.slot.tokens
            if part.read:
                capture = [place - at for place in part.capture]
                segments.append(Segment(part.slot.index, at, tokens[at : at + part.read], True, capture))
            else:
                segments.append(Segment(part.slot.index, at, [tokens[at], *part.drafts]))
        rows, hidden = self.runner.forward(segments)
        for part, start in zip(parts, rows.starts):
            part.row = start
        return rows, hidden

    def sample(self, parts: Sequence[Part], hidden: Tensor) -> None:
        """Draw every row that yields a token and decide which drafts hold: fills `kept`, `held`, `judged`, `error`."""
        drawn: list[tuple[Part, int]] = []  # the part and the number of its rows
        wanted: list[int] = []
        draws: list[Draw] = []
        for part in parts:
            last = part.row + part.rows - 1
            many = part.L if part.L else int(self._finishes_prompt(part))
            if many:
                drawn.append((part, many))
                wanted.extend(range(last - many + 1, last + 1))
                position = len(part.slot.tokens)
                draws.extend(self.draw(part.slot, position + j, part.drafts[:j]) for j in range(many))
        if not wanted:
            return
        logits = self.runner.logits(hidden, wanted)
        targets, probabilities = sample(logits, draws)
        tokens, finite = targets.tolist(), (~probabilities.isnan()).tolist()
        first = 0
        for part, many in drawn:
            rows = slice(first, first + many)
            if not all(finite[rows]):
                part.error = "the model's output is not a number"
            elif self.rejection and part.drafts:
                p = distribution(logits[rows], draws[rows])
                q = self._drafted_from(part, p)
                part.kept, part.held = accept_rejection(part.drafts, p, q, draws[rows])
            else:
                part.kept = accept_coupled(part.drafts, tokens[rows])
                part.held = len(part.kept) - 1
            part.judged = len(part.drafts) if part.kept else 0
            part.logits = logits[rows]
            first += many

    def _drafted_from(self, part: Part, p: Tensor) -> Tensor:
        """The distributions [n, V] the drafts came from; a drafter without any put all on its draft."""
        if part.proposal.distributions:
            return torch.stack(part.proposal.distributions)
        drafts = torch.tensor(part.drafts, device=p.device)[:, None]
        return torch.zeros_like(p[:-1]).scatter_(1, drafts, 1.0)

    def _finishes_prompt(self, part: Part) -> bool:
        """Whether the part's last prompt row yields the request's first token (after a preemption it is known)."""
        at = self.runner.cache.lengths[part.slot.index]
        return part.read > 0 and at + part.read == len(part.slot.tokens) == len(part.slot.request.prompt)

    def accept(self, part: Part) -> None:
        """Append the kept tokens to the slot until one ends the request; drafts behind that one are censored."""
        slot, place = part.slot, len(part.slot.tokens)
        for i, token in enumerate(part.kept):
            slot.tokens.append(token)
            try:
                part.finish = self._ending(slot, token)
            except Exception as error:  # whoever watches this request fails it, and no other one
                part.finish, part.error = "error", f"{type(error).__name__}: {error}"
            if part.finish is not None:
                part.kept = part.kept[: i + 1]
                part.judged, part.held = min(part.judged, i + 1), min(part.held, i + 1)
                break
        self.penalties.commit(slot.index, part.kept)
        if part.kept and part.logits is not None:
            self._report(slot, place, part.kept, part.logits)

    def _ending(self, slot: Slot, token: int) -> str | None:
        """The finish reason, if this token (the slot's last) ends the request."""
        params, watch = slot.request.params, slot.request.watch
        stopped = token in params.stop_token_ids or (token in self.eos and not params.ignore_eos)
        if not stopped and watch is not None:
            stopped = watch.push(token)
        return "stop" if stopped else "length" if slot.left == 0 else None

    def _report(self, slot: Slot, place: int, kept: Sequence[int], logits: Tensor) -> None:
        """Log probabilities of committed tokens where asked, and the watch; `place` is the first one's position."""
        top = slot.request.params.logprobs
        if top is not None:
            values, best, ids = logprobs(logits[: len(kept)], torch.tensor(kept, device=logits.device), top)
            slot.logprobs += [
                TokenLogprob(token, value, tuple(zip(i, b)))
                for token, value, b, i in zip(kept, values.tolist(), best.tolist(), ids.tolist())
            ]
        if self.watch is not None:
            for j in range(len(kept)):
                self.watch(slot.request.id, place + j, logits[j])
