"""A conversation held with an engine: turns and their undoing, settings that the engine judges. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from strata_cli.chat.conversation import Conversation, Message
from strata_cli.chat.echo import NoEcho
from strata_cli.chat.status import AnswerTotals
from strata_cli.chat.turn import Answer, Turn, View
from strata_cli.config import SamplingParams
from strata_cli.errors import StrataError, UsageError
from strata_cli.interrupt import Interrupt
from strata_cli.session import Observer, Session
from strata_cli.text.template import ChatTemplate
from strata_cli.text.thinking import ThinkingSplitter


class DialogueView(View, Protocol):
    """Where a dialogue meets its person. `begin` and `end` frame the candidates of one turn."""

    def begin(self, answers: Sequence[Answer]) -> None: ...
    def end(self, answers: Sequence[Answer]) -> None: ...
    def pick(self, answers: Sequence[Answer]) -> int | None: ...
    def edit(self, text: str) -> str: ...


def require_switch(template: ChatTemplate) -> None:
    """UsageError where thinking on and thinking off give the same prompt."""
    probe = [{"role": "user", "content": "?"}]
    if template.render(probe, enable_thinking=True) == template.render(probe, enable_thinking=False):
        raise UsageError("the chat template of this model has no switch for thinking", "leave --think away")


class Dialogue:
    """What the person and the model say to each other, turn by turn.

    Args:
        session: the loaded model.
        conversation: its state, which this object alone changes.
        screen: where turns are shown.
        observers: get every event of a turn (the step statistics).
    """

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        screen: DialogueView,
        observers: Sequence[Observer] = (),
    ):
        self.session = session
        self.observers = observers
        self.conversation = conversation
        self.screen = screen
        self.totals = AnswerTotals()
        self.last: Answer | None = None  # the answer that was kept last
        self.attached: list[str] = []  # texts of /read, which go before the next message
        self.path: Path | None = None  # where /save without a name writes
        self.leaving = False
        self.set_think(conversation.think)

    # --- turns

    def say(self, text: str) -> None:
        """The person's next message, and its answer."""
        before = self._state()
        self.conversation.say("\n\n".join([*self.attached, text]))
        if self._answered(before):
            self.attached.clear()

    def regen(self) -> None:
        """Another answer to the last message; without one, the old answer stays."""
        messages, attempt = self._state()
        self.conversation.retake()
        self._answered((messages, attempt + 1))

    def edit(self) -> None:
        """Change the last message in an editor and have it answered; unchanged or empty text changes nothing."""
        old = self.conversation.last_user() or ""
        text = self.screen.edit(old).strip()
        if text in ("", old.strip()):
            self.screen.note("nothing changed")
            return
        before = self._state()
        del self.conversation.messages[-2:]
        self.conversation.say(text)
        self._answered(before)

    def clear(self) -> None:
        """Forget what was said; settings and system text stay."""
        self.conversation.messages.clear()
        self.conversation.attempt = 0
        self.attached.clear()

    def ask(self) -> list[Answer]:
        """All candidates of an answer to what stands in the conversation, shown as they come; nothing is kept."""
        prompt = self.session.checkpoint.prompt(self.conversation.for_template(), self._variables())
        answers = [
            Answer(candidate, self.conversation.answer_params(candidate), ThinkingSplitter(prompt.thinking))
            for candidate in range(self.conversation.n)
        ]
        self.screen.begin(answers)
        try:
            with NoEcho(), Interrupt() as interrupt:
                turn = Turn(self.session, self.screen, self.conversation.think_budget, self.observers)
                turn.run(prompt, answers, lambda: interrupt.wanted)
        finally:
            self.screen.end(answers)
        for answer in answers:
            self.totals.add(answer)
        failed = next((a.result.error for a in answers if a.result and a.result.error), None)
        if failed:
            raise StrataError(f"the answer failed: {failed}")
        return answers

    def _state(self) -> tuple[list[Message], int]:
        return list(self.conversation.messages), self.conversation.attempt

    def _answered(self, before: tuple[list[Message], int]) -> bool:
        """Answer the last message; what was said is as `before` when no answer was had."""
        chosen = None
        try:
            answers = self.ask()
            picked = 0 if len(answers) == 1 else self.screen.pick(answers)
            chosen = None if picked is None else answers[picked]
        finally:
            if chosen is None or (chosen.interrupted and chosen.empty):
                self.conversation.messages, self.conversation.attempt = before
                chosen = None
        if chosen is None:
            self.screen.note("no answer was kept; the conversation is as before")
            return False
        self.last = chosen
        self.conversation.reply(chosen.text, chosen.reasoning, chosen.interrupted)
        return True

    # --- settings that the engine or the template has a say in

    @property
    def context_limit(self) -> int:
        """Tokens a conversation may have, its next answer included."""
        return self.session.engine.ctx

    @property
    def defaults(self) -> SamplingParams:
        """The checkpoint's sampling parameters."""
        return self.session.defaults

    def set_candidates(self, n: int) -> None:
        slots = self.session.engine.config.batch
        if not 1 <= n <= slots:
            raise UsageError(
                f"{n} candidates do not fit {slots} slots", f"1 to {slots}, or start with a larger --batch"
            )
        self.conversation.n = n

    def set_draft(self, spec: int | None) -> None:
        """The most drafts of a chain; None: as the engine's planner likes, 0: none."""
        most = self.session.engine.config.spec
        if spec is not None and not 0 <= spec <= most:
            raise UsageError(f"chains of {spec} drafts are out of range", f"0 to {most}, or start with a larger --spec")
        self.conversation.set_spec(spec)

    def set_think(self, think: bool | None) -> None:
        """Thinking on or off; None leaves it to the template."""
        if think is not None:
            require_switch(self.session.template)
        self.conversation.think = think

    def load(self, path: Path) -> None:
        """Go on with a saved conversation; another model's is taken, with a warning."""
        conversation, model = Conversation.load(path)
        old = self.conversation
        self.conversation = conversation
        try:
            self.set_candidates(conversation.n)
            self.set_draft(conversation.params.spec)
            self.set_think(conversation.think)
        except UsageError:
            self.conversation = old
            raise
        self.path = path
        self.attached.clear()
        if model != self.session.checkpoint.name:
            self.screen.note(
                f"warning: saved with {model}, this is {self.session.checkpoint.name}: its next tokens will differ"
            )

    def save(self, path: Path | None) -> Path:
        """Write the conversation; without a path, where it was last saved or loaded."""
        path = path or self.path
        if path is None:
            raise UsageError("there is no file name yet", "/save FILE")
        self.conversation.save(path, self.session.checkpoint.name)
        self.path = path
        return path

    def stats(self) -> list[str]:
        """What /stats shows."""
        used = self.last.context_tokens if self.last and self.conversation.messages else 0
        return [
            *self.totals.lines(),
            f"context      {used:,} of {self.context_limit:,} tokens",
            f"seed         {self.conversation.seed}",
            *(f"downgrade    {line}" for line in self.session.engine.downgrades),
        ]

    def _variables(self) -> dict[str, Any]:
        think = self.conversation.think
        return {} if think is None else {"enable_thinking": think}
