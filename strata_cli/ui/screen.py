"""The screen of a dialogue: which of the writers shows a turn, and how the person picks and edits. No torch."""

from collections.abc import Sequence

from strata_cli.chat.turn import Answer
from strata_cli.text.thinking import Piece
from strata_cli.ui.candidates import Columns, Listing
from strata_cli.ui.editor import edit_text
from strata_cli.ui.repl import ask_pick
from strata_cli.ui.stream import AnswerWriter, Channels


class Screen:
    """One answer streams to stdout; of several only the picked one goes there, or all when nobody picks.

    Args:
        channels: stdout and stderr.
        limit: tokens of a slot's context, for the status line.
        live: draw candidates in columns where stderr is a terminal; otherwise one after the other.
        attended: somebody is there to pick.
        silent: show no answers at all, only notes.
    """

    def __init__(self, channels: Channels, limit: int, live: bool, attended: bool, silent: bool):
        self.channels = channels
        self.limit = limit
        self.live = live and attended and channels.err_is_terminal
        self.attended = attended
        self.silent = silent
        self._writer: AnswerWriter | None = None
        self._candidates: Columns | Listing | None = None

    def begin(self, answers: Sequence[Answer]) -> None:
        if self.silent:
            return
        if len(answers) == 1:
            self._writer = AnswerWriter(self.channels)
            return
        if answers[0].params.temperature == 0:
            self.note("temperature 0: the candidates are equal")
        if self.live:
            self._candidates = Columns(self.channels, answers)
        else:
            self._candidates = Listing(self.channels.err if self.attended else self.channels.out, answers)

    def show(self, answer: Answer, pieces: Sequence[Piece]) -> None:
        if self._writer:
            self._writer.show(answer, pieces)

    def tick(self) -> None:
        if self._candidates:
            self._candidates.tick()

    def end(self, answers: Sequence[Answer]) -> None:
        if self._writer:
            self._writer.end(answers[0], self.limit)
        if self._candidates:
            self._candidates.end()
        self._writer = self._candidates = None

    def pick(self, answers: Sequence[Answer]) -> int | None:
        """The candidate the person takes, which is then written as the answer."""
        picked = ask_pick(len(answers))
        if picked is not None:
            writer = AnswerWriter(self.channels)
            writer.show(answers[picked], [Piece(answers[picked].text, thinking=False)])
            writer.end(answers[picked], self.limit)
        return picked

    def edit(self, text: str) -> str:
        return edit_text(text)

    def note(self, text: str) -> None:
        self.channels.note(text)
