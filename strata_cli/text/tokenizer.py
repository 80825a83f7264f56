"""Text to token ids and back, by the checkpoint's tokenizer.json. No torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers

from strata_cli.errors import UsageError

REPLACEMENT = "\ufffd"  # what decoding gives for bytes that are no (or not yet) UTF-8


class Tokenizer:
    """A checkpoint's tokenizer. Special tokens written in a text become their ids; nothing else is added (no BOS)."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint; None where it has no tokenizer.json (prompts are token ids then)."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            return cls(tokenizers.Tokenizer.from_buffer(path.read_bytes()))
        except Exception as fault:  # the Rust side raises bare Exception
            raise UsageError(f"{path}: not a tokenizer: {fault}") from None

    @property
    def size(self) -> int:
        """One more than the largest token id it knows."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids, without special tokens (those flagged `special` only: tags such as <think> stay)."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))

    def special_id(self, text: str) -> int | None:
        """The id of a special token that is spelled exactly so."""
        token = self._backend.token_to_id(text)
        return token if token in self.special_ids else None

    def stream(self, hidden: Iterable[int] = ()) -> "IncrementalDetokenizer":
        """A detokenizer for one request; ids in `hidden` give no text, special tokens never do."""
        return IncrementalDetokenizer(self, self.special_ids.union(hidden))


class IncrementalDetokenizer:
    """Token ids in, text out as soon as it is certain; all pieces together are the decoded whole.

    A piece never ends within a character: bytes of a sequence that is not complete wait for the next token, and for
    `flush` at the end, which gives what never became a character as U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]):
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._ids: list[int] = []  # those of the last piece (some decoders look at what stands before), then the new
        self._given = 0  # how many of them are the last piece's
        self._known = ""  # the text of those

    def push(self, token: int) -> str:
        """The text that became certain with this token; "" while a character is incomplete."""
        if token in self._hidden:
            return ""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(REPLACEMENT) or len(text) == len(self._known):
            return ""
        piece = text[len(self._known) :]
        self._ids = self._ids[self._given :]
        self._given = len(self._ids)
        self._known = self._tokenizer.decode(self._ids)
        return piece

    def flush(self) -> str:
        """The rest, at the end of the request."""
        piece = self._tokenizer.decode(self._ids)[len(self._known) :]
        self._ids, self._given, self._known = [], 0, ""
        return piece
