"""A checkpoint as far as it can be read without torch: what all input is checked against before weights are loaded."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.types import Request
from strata_cli.errors import UsageError
from strata_cli.hub import find_model
from strata_cli.model.config import SIZE_LIMIT, ModelConfig, load_config
from strata_cli.model.files import present, read_object, shown
from strata_cli.settings import Settings
from strata_cli.text.stop import StopWatch
from strata_cli.text.template import ChatTemplate
from strata_cli.text.thinking import opens_thinking
from strata_cli.text.tokenizer import Tokenizer

# generation_config.json key -> SamplingParams field
DEFAULT_KEYS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}
WHOLE_KEYS = ("top_k", "max_new_tokens")
SAMPLE_BYTES = 1 << 16
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it.

    `turn`: where its newest message begins, a place that later prompts are likely to share. `thinking`: it ends inside
    a thinking block.
    """

    ids: list[int]
    turn: int | None = None
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's directory as far as it can be read without torch.

    `context`: the most tokens of one request. `vocab`: token ids a prompt may hold. `tokenizer` and `template` are None
    where the checkpoint has none.
    """

    name: str
    path: Path
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    defaults: SamplingParams
    context: int
    vocab: int

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.model_config.eos_token_ids

    @property
    def format(self) -> str:
        """What config.json calls the weights: "int4 g32", "bfloat16", or "safetensors" where it says nothing."""
        top = read_object(self.path / "config.json")
        text = top.get("text_config") or {}
        groups = (top.get("quantization_config") or {}).get("config_groups") or {}
        for group in groups.values():
            weights = group.get("weights") or {}
            return f"int{weights.get('num_bits')} g{weights.get('group_size')}"
        return str(text.get("dtype") or top.get("dtype") or top.get("torch_dtype") or "safetensors")

    def fingerprint(self) -> str:
        """16 digits that tell this checkpoint from another: all small files, and samples of the weights."""
        digest = hashlib.sha256()
        kinds = (".json", ".jinja", ".safetensors")
        for file in sorted(p for p in self.path.iterdir() if p.suffix in kinds and p.is_file()):
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode())
            with file.open("rb") as stream:
                for place in (0, size // 2, max(size - SAMPLE_BYTES, 0)):
                    stream.seek(place)
                    digest.update(stream.read(SAMPLE_BYTES))
        return digest.hexdigest()[:16]

    def prompt(self, given: str | Sequence[int] | Messages, template_kwargs: Mapping[str, Any] | None = None) -> Prompt:
        """Text, token ids or messages as a prompt.

        Raises UsageError: empty, too long for the context, an id outside the vocabulary, no tokenizer or template to
        make ids of it, a template that refuses the messages.
        """
        if isinstance(given, str):
            prompt = Prompt(self._encode(given))
        elif given and isinstance(given[0], Mapping):
            prompt = self._chat(given, template_kwargs or {})  # type: ignore[arg-type]
        else:
            prompt = Prompt(list(given))  # type: ignore[arg-type]
        if not prompt.ids:
            raise UsageError("empty prompt")
        if bad := [i for i in (min(prompt.ids), max(prompt.ids)) if not 0 <= i < self.vocab]:
            raise UsageError(f"token id {bad[0]} is outside the vocabulary of {self.vocab} ids")
        if len(prompt.ids) >= self.context:
            raise UsageError(
                f"prompt of {len(prompt.ids)} tokens, and the context of {self.context} has to hold a completion too",
                f"the model has {self.model_config.max_position_embeddings} positions; --ctx sets how many are used",
            )
        return prompt

    def request(self, id: str, prompt: Prompt, params: SamplingParams) -> Request:
        """A request with a StopWatch on its text.

        Raises UsageError: a biased or stop id outside the vocabulary, stop strings without a tokenizer.

        A stop string that is a special token ends the request by its id: special tokens are no text.
        """
        for name, ids in (("logit_bias", [i for i, _ in params.logit_bias]), ("stop_token_ids", params.stop_token_ids)):
            if bad := [i for i in ids if not 0 <= i < self.vocab]:
                raise UsageError(f"{name}: token id {bad[0]} is outside the vocabulary of {self.vocab} ids")
        watch = None
        if self.tokenizer is not None:
            named = {text: self.tokenizer.special_id(text) for text in params.stop}
            special = tuple(i for i in named.values() if i is not None)
            strings = tuple(text for text in params.stop if named[text] is None)
            params = replace(params, stop=strings, stop_token_ids=(*params.stop_token_ids, *special))
            watch = StopWatch(self.tokenizer.stream(), strings)
        elif params.stop:
            raise UsageError(f"{self.name} has no tokenizer.json, so stop strings cannot be found", "stop_token_ids")
        return Request(id, prompt.ids, params, watch, prompt.turn)

    def params(self, *overrides: Mapping[str, Any]) -> SamplingParams:
        """The checkpoint's defaults with these values over them, the last the strongest."""
        return replace(self.defaults, **{name: value for values in overrides for name, value in values.items()})

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise UsageError(f"{self.name} has no tokenizer.json", "give the prompt as token ids")
        return self.tokenizer.encode(text)

    def _chat(self, messages: Messages, template_kwargs: Mapping[str, Any]) -> Prompt:
        if self.template is None:
            raise UsageError(f"{self.name} has no chat template", "give `prompt` instead of `messages`")
        text = self.template.render(messages, **template_kwargs)
        ids = self._encode(text)
        try:
            before = self._encode(self.template.render(messages[:-1], add_generation_prompt=False, **template_kwargs))
        except UsageError:  # a template may insist on a user's turn
            before = []
        shared = next((i for i, (a, b) in enumerate(zip(ids, before)) if a != b), min(len(ids), len(before)))
        return Prompt(ids, shared or None, opens_thinking(text))


def open_checkpoint(settings: Settings) -> Checkpoint:
    """Find the model of the settings and read all of it that needs no torch."""
    return read_checkpoint(settings.model, settings.engine, aliases=settings.aliases, download=settings.download)


def read_checkpoint(
    ref: str, config: EngineConfig, *, aliases: Mapping[str, str] | None = None, download: bool = False
) -> Checkpoint:
    """The checkpoint that `ref` names.

    Raises UsageError: no such model, a directory that is no checkpoint, an architecture that is not supported, more
    context than the model has, no directory to take an MTP head from.
    """
    if config.mtp is not None and not Path(config.mtp).is_dir():
        raise UsageError(f"--mtp: no directory {config.mtp}", "a checkpoint with an MTP head")
    found = find_model(ref, aliases, download)
    model = load_config(found.path)
    tokenizer = Tokenizer.load(found.path)
    vocab = model.vocab_size if tokenizer is None else min(tokenizer.size, model.vocab_size)
    return Checkpoint(
        name=found.name,
        path=found.path,
        model_config=model,
        tokenizer=tokenizer,
        template=ChatTemplate.load(found.path),
        defaults=read_defaults(found.path),
        context=config.context(model.max_position_embeddings),
        vocab=vocab,
    )


def read_defaults(directory: Path) -> SamplingParams:
    """The sampling that generation_config.json recommends; `do_sample: false` is temperature 0.

    Raises UsageError: a file that cannot be read, a value of the wrong type or out of range.
    """
    path = directory / "generation_config.json"
    if not present(path):
        return SamplingParams()
    found = {key: value for key, value in read_object(path).items() if value is not None}
    if not isinstance(found.get("do_sample", True), bool):
        raise UsageError(f"{path}: do_sample = {shown(found['do_sample'])}: must be true or false")
    for key in [key for key in DEFAULT_KEYS if key in found]:
        value, whole = found[key], key in WHOLE_KEYS
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or abs(value) > SIZE_LIMIT:
            kind = "whole number" if whole else "number"
            raise UsageError(f"{path}: {key} = {shown(value)}: must be a {kind} of at most {SIZE_LIMIT}")
    given = {field: found[key] for key, field in DEFAULT_KEYS.items() if key in found}
    if found.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)
    except UsageError as fault:
        raise UsageError(f"{path}: {fault.what}", fault.hint) from None
