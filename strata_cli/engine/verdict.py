"""From what the device says of a window to what becomes of its requests: tokens, endings, errors."""

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from strata_cli.engine.life import Life
from strata_cli.engine.runner import LaidWindow, Outcomes
from strata_cli.engine.sampling import logprobs
from strata_cli.engine.types import TokenLogprob
from strata_cli.engine.window import Share, SlotVerdict

RowWatch = Callable[[str, int, Tensor], None]  # (request id, position of the token, its row of scores [V])


class Judge:
    """`watch`, where set, sees the unprocessed scores of every committed token's row (for `strata parity`).

    eos: token ids that end a request. blame: names what of the model is not a number, "" where nothing stands out.
    """

    def __init__(self, eos: Collection[int], blame: Callable[[], str]):
        self.eos, self.blame = eos, blame
        self.watch: RowWatch | None = None

    def verdicts(self, layout: LaidWindow, outcomes: Outcomes) -> tuple[SlotVerdict, ...]:
        """One for each share of the plan, in its order; the tokens join their lives."""
        found = {}
        for share, first in zip(layout.plan.ordered, layout.firsts, strict=True):
            found[share.slot.index] = self._verdict(share, first, outcomes)
        return tuple(found.get(s.slot.index, SlotVerdict()) for s in layout.plan.shares)

    def _verdict(self, share: Share, first: int, outcomes: Outcomes) -> SlotVerdict:
        """Tokens until one ends the request; drafts behind that one are censored."""
        if not share.draws:
            return SlotVerdict()
        if not all(outcomes.finite[first : first + share.draws]):
            return SlotVerdict(error=" ".join(("the model's output is not a number", self.blame())).strip())
        life, index = share.slot.life, share.slot.index
        held = int(outcomes.held[index])
        tokens = outcomes.targets[index, : held + 1].tolist()
        place = len(life.tokens)
        finish = error = None
        for token in tokens:
            life.tokens.append(token)
            try:
                finish = self._ending(life, token)
            except Exception as fault:  # whoever watches this request fails it, and no other one
                finish, error = "error", f"{type(fault).__name__}: {fault}"
            if finish is not None:
                break
        n = len(life.tokens) - place
        ended = finish is not None
        scores = outcomes.drawn.scores[first : first + n] if self._looked_at(life) else None
        return SlotVerdict(
            tokens=tuple(tokens[:n]),
            judged=min(share.drafts, n) if ended else share.drafts,
            held=min(held, n),
            finish=finish,
            error=error,
            logprobs=tuple(self._show(life, place, tokens[:n], scores)) if scores is not None else (),
        )

    def _ending(self, life: Life, token: int) -> str | None:
        """The finish reason, if this token (the life's last) ends the request."""
        params, watch = life.request.params, life.request.watch
        stopped = token in params.stop_token_ids or (token in self.eos and not params.ignore_eos)
        if not stopped and watch is not None:
            stopped = watch.push(token)
        return "stop" if stopped else "length" if life.left == 0 else None

    def _looked_at(self, life: Life) -> bool:
        return self.watch is not None or life.request.params.logprobs is not None

    def _show(self, life: Life, place: int, tokens: Sequence[int], scores: Tensor) -> list[TokenLogprob]:
        """Log probabilities of committed tokens where asked, and the watch; `place` is the first one's position."""
        if self.watch is not None:
            for j in range(len(tokens)):
                self.watch(life.request.id, place + j, scores[j])
        top = life.request.params.logprobs
        return logprobs(scores, tokens, top) if top is not None else []
