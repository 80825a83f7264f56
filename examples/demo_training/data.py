"""Text of the demo model as tokens: the tokenizer, packed rows, and which tokens repeat a name."""

import dataclasses
import random
import re

import numpy as np
import torch
from demo_text.documents import KINDS, document
from demo_text.words import ANIMALS, BOYS, COLORS, FOODS, GIRLS, OBJECTS, PET_NAMES, ROLES
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END, START_TURN, END_TURN = range(3)
# one digit per token, a leading blank or sign belongs to its word
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NAMES = GIRLS + BOYS + PET_NAMES
THINGS = OBJECTS + FOODS + ANIMALS + ROLES + COLORS


def train_tokenizer(vocab_size: int, megabytes: float = 8, seed: int = 77) -> Tokenizer:
    """A byte-level BPE in which every name, animal and object is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    r = random.Random(seed)
    texts, size = [], 0
    while size < megabytes * 1e6:
        texts.append(document(r)[1])
        size += len(texts[-1])
    texts += [form for name in NAMES for form in (name, " " + name) for _ in range(2000)]
    texts += [" " + thing for thing in THINGS for _ in range(2000)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def word_groups(tokenizer: Tokenizer, words: list[str], first: int) -> dict[int, int]:
    """Token id to the number of its word, for words that are one token with or without a leading blank."""
    groups = {}
    for number, word in enumerate(words, first):
        for form in (word, " " + word):
            ids = tokenizer.encode(form).ids
            if len(ids) == 1:
                groups[ids[0]] = number
    return groups


@dataclasses.dataclass
class Rows:
    """Packed rows of T + 1 tokens; documents of a row do not see each other."""

    ids: torch.Tensor  # [N, T+1] int64
    document: torch.Tensor  # [N, T+1] int64, number of the document within the row
    weight: torch.Tensor  # [N, T+1] float32, loss weight of a token as a target
    repeat: torch.Tensor  # [N, T+1] bool, a name that its document has already shown

    def take(self, index) -> "Rows":
        """Some of the rows."""
        return Rows(self.ids[index], self.document[index], self.weight[index], self.repeat[index])

    def first(self) -> torch.Tensor:
        """[N, T] bool, true at the first input token of a document."""
        d = self.document[:, :-1]
        return torch.cat((torch.ones_like(d[:, :1], dtype=torch.bool), d[:, 1:] != d[:, :-1]), 1)

    def mask(self) -> torch.Tensor:
        """[N, 1, T, T] additive mask: causal and within one document."""
        d = self.document[:, :-1]
        length = d.shape[1]
        seen = (d[:, :, None] == d[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
        return torch.where(seen, 0.0, -1e30)[:, None]


class Packer:
    """Documents to rows."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        name_weight: float = 3.0,
        thing_weight: float = 1.5,
        digit_weight: float = 2.0,
    ):
        self.tokenizer, self.length = tokenizer, length
        groups = np.full(tokenizer.get_vocab_size(), -1)
        for words, first in ((NAMES, 0), (THINGS, 1000)):
            for token, number in word_groups(tokenizer, words, first).items():
                groups[token] = number
        self.groups, self.name_weight, self.thing_weight = groups, name_weight, thing_weight
        self.plain = np.ones(len(groups), np.float32)
        self.digits = [tokenizer.token_to_id(d) for d in "0123456789"]
        self.plain[self.digits] = digit_weight
        self.stop = tokenizer.token_to_id(".")

    def marks(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loss weights, and which tokens are names that came before."""
        group = self.groups[ids]
        weight, repeat = self.plain[ids], np.zeros(len(ids), bool)
        # where a row of numbers ends is one token among many, and decides whether the row is right
        weight[1:][(ids[1:] == self.stop) & np.isin(ids[:-1], self.digits)] = 4
        seen = set()
        for i in np.nonzero(group >= 0)[0]:
            g = group[i]
            if g in seen:
                repeat[i] = g < 1000
                weight[i] = self.name_weight if g < 1000 else self.thing_weight
            seen.add(g)
        return weight, repeat

    def rows(self, texts: list[str]) -> Rows:
        """Documents in a row one after the other, the last one cut off."""
        size = self.length + 1
        out, current = [], []
        for e in self.tokenizer.encode_batch(texts):
            ids = np.array([*e.ids, END])
            weight, repeat = self.marks(ids)
            weight[0] = 0  # nothing before it tells what a document starts with
            current.append((ids, weight, repeat))
            if sum(len(c[0]) for c in current) >= size:
                number = np.concatenate([np.full(len(c[0]), i) for i, c in enumerate(current)])
                out.append([number[:size], *(np.concatenate(t)[:size] for t in zip(*current, strict=True))])
                current = []
        number, ids, weight, repeat = (torch.from_numpy(np.stack(t)) for t in zip(*out, strict=True))
        return Rows(ids.long(), number.long(), weight, repeat)


def block(packer: Packer, seed: int, number: int, column: int, documents: int = 4000) -> Rows:
    """Block `number` of the training text, the same for the same arguments, rows shuffled."""
    r = random.Random(f"{seed} {number}")
    return packer.rows([document(r, column)[1] for _ in range(documents)])


def held_out(kind: str, count: int, seed: int = 9001) -> list[str]:
    """Documents of one kind that training does not see."""
    r = random.Random(f"held out {seed} {kind}")
    make = KINDS[kind][0]
    return [make(r).strip("\n") + "\n" for _ in range(count)]


def prompt(question: str) -> str:
    """A user turn and the start of the answer."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def names_in(text: str) -> list[str]:
    """The names in a text, in order."""
    known = set(NAMES)
    return [w for w in re.findall(r"\b[A-Z][a-z]+\b", text) if w in known]
