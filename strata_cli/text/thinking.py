"""Tells a model's thinking from its answer while the text still comes. No torch.

A thinking block stands at the very beginning of a reply, between `<think>` and `</think>`; the template may have
opened it at the end of the prompt. Tags that come later are part of the answer. The newlines next to the tags belong to
neither side (the Qwen templates write and strip them the same way).
"""

from dataclasses import dataclass
from typing import Literal

OPEN, CLOSE = "<think>", "</think>"
FORCED_CLOSE = f"\n{CLOSE}\n\n"  # what is put after thinking that was cut short


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is final, and the side it belongs to."""

    text: str
    thinking: bool


def opens_thinking(prompt: str) -> bool:
    """Does the rendered prompt end inside a thinking block?"""
    return prompt.rstrip().endswith(OPEN)


def split_thinking(text: str, opened: bool = False) -> tuple[str, str]:
    """(thinking, answer) of a whole reply."""
    splitter = ThinkingSplitter(opened)
    splitter.feed(text)
    splitter.finish()
    return splitter.reasoning, splitter.answer


class ThinkingSplitter:
    """Splits a reply fed in any chunks; `reasoning` and `answer` hold what was released so far.

    Args:
        opened: the prompt already opened the block.
    """

    def __init__(self, opened: bool = False):
        self.reasoning = ""
        self.answer = ""
        self.thinking_tokens = 0  # those fed while the block was open; a closing tag of several counts its first ones
        self._state: Literal["start", "thinking", "answer"] = "thinking" if opened else "start"
        self._held = ""  # may still turn out to be a tag, or a newline beside one
        self._thought = opened

    @property
    def thinking(self) -> bool:
        """Is the block open now?"""
        return self._state == "thinking"

    def feed(self, text: str, tokens: int = 0) -> list[Piece]:
        """Take the next text, which `tokens` tokens made; give what became final."""
        was_thinking = self.thinking
        self._held += text
        pieces = self._advance()
        if was_thinking and self.thinking:
            self.thinking_tokens += tokens
        return pieces

    def close(self) -> list[Piece]:
        """End an open block as if its closing tag had come."""
        if not self.thinking:
            return []
        pieces = self._release(self._held.rstrip("\n"))
        self._held, self._state = "", "answer"
        return pieces

    def finish(self) -> list[Piece]:
        """The reply ended: release what was held."""
        if self.thinking:
            pieces = self._release(self._held.rstrip("\n"))
        else:
            self._state = "answer"
            pieces = self._release(self._held)
        self._held = ""
        return pieces

    def _advance(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._state == "start":
            text = self._held.lstrip()
            if text != OPEN and OPEN.startswith(text):
                return []
            if text.startswith(OPEN):
                self._state, self._thought, self._held = "thinking", True, text.removeprefix(OPEN)
            else:
                self._state = "answer"
        if self._state == "thinking":
            inside, tag, rest = self._held.partition(CLOSE)
            if not tag:
                cut = _safe_length(inside)
                self._held = inside[cut:]
                return self._release(inside[:cut])
            pieces = self._release(inside.rstrip("\n"))
            self._state, self._held = "answer", rest
        text, self._held = self._held, ""
        return pieces + self._release(text)

    def _release(self, text: str) -> list[Piece]:
        if self.thinking:
            text = text if self.reasoning else text.lstrip("\n")
            self.reasoning += text
        else:
            text = text if self.answer or not self._thought else text.lstrip("\n")
            self.answer += text
        return [Piece(text, self.thinking)] if text else []


def _safe_length(text: str) -> int:
    """Length of `text` without an end that may grow into newlines and a closing tag."""
    cut = next(len(text) - k for k in range(len(CLOSE) - 1, -1, -1) if text.endswith(CLOSE[:k]))
    return len(text[:cut].rstrip("\n"))
