"""A model directory without weights and an engine that invents tokens, for the tests of everything around the engine.

`python -m tests.cli.fake ARGS` is `strata ARGS` with that engine; FAKE_DIE says where the process kills itself.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import strata_cli.batch.journal
import strata_cli.commands.run
from strata_cli import app
from strata_cli.config import EngineConfig
from strata_cli.engine.record import StepRecord
from strata_cli.engine.types import (
    Downgrade,
    Event,
    Finished,
    Request,
    Result,
    SpecStats,
    Started,
    Timings,
    Tokens,
    WindowDone,
)
from strata_cli.errors import UsageError
from strata_cli.session import Checkpoint, Session
from tests.conftest import build_byte_tokenizer

EOS = 262
CONFIG = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "rms_norm_eps": 1e-6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "vocab_size": 280,
    "max_position_embeddings": 128,
    "eos_token_id": EOS,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def make_model(directory: Path, **config: object) -> Path:
    """A checkpoint's small files: config, tokenizer, template, defaults."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    build_byte_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS], "temperature": 0.9}))
    return directory


class FakeEngine:
    """Up to `config.batch` requests side by side; token i of one is a hash of its prompt, its seed and i.

    A prompt that ends in "!boom" fails alone after one token. `at_step` is called before each window.
    """

    memory = SimpleNamespace(total_bytes=0, as_dict=dict)
    clock = staticmethod(time.perf_counter)

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig):
        self.config, self.ctx, self.eos = config, checkpoint.context, checkpoint.eos_token_ids
        self.boom = checkpoint.tokenizer.encode("!boom") if checkpoint.tokenizer else [-1]
        self.submitted: list[Request] = []
        self.waiting: list[Request] = []
        self.running: dict[int, tuple[Request, list[int]]] = {}
        self.downgrades: list[str] = []
        self.steps = 0
        self.closed = self.paused = False

    def at_step(self, number: int) -> None: ...

    def submit(self, request: Request) -> None:
        if len(request.prompt) >= self.ctx:
            raise UsageError(f"request {request.id}: too long")
        self.submitted.append(request)
        self.waiting.append(request)

    def cancel(self, request_id: str) -> bool:
        raise AssertionError("a batch cancels nobody")

    def pause(self, paused: bool = True) -> None:
        self.paused = paused

    def idle_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self.closed = True

    @property
    def has_work(self) -> bool:
        return bool(self.running or (self.waiting and not self.paused))

    def step(self) -> list[Event]:
        self.steps += 1
        self.at_step(self.steps)
        events: list[Event] = []
        for slot in range(self.config.batch):
            if slot not in self.running and self.waiting and not self.paused:
                self.running[slot] = (self.waiting.pop(0), [])
                events.append(Started(self.running[slot][0].id, slot, 0))
        if self.steps == 2 and self.config.batch == 3:
            events.append(Downgrade("drafts off", "a test says so"))
        keeps, ended = [], []
        for slot, (request, tokens) in sorted(self.running.items()):
            wanted = 1 + _hash(request, len(tokens), "n") % 3
            reason = None
            before = len(tokens)
            while reason is None and wanted:
                tokens.append(_hash(request, len(tokens), "token") % 256)
                wanted -= 1
                reason = self._ending(request, tokens)
            keeps.append(len(tokens) - before)
            events.append(Tokens(request.id, slot, tuple(tokens[before:])))
            if reason:
                ended.append((slot, reason))
        record = self._record(keeps)
        for slot, reason in ended:
            request, tokens = self.running.pop(slot)
            error = "this request is cursed" if reason == "error" else None
            seed = request.params.seed
            assert seed is not None, "a batch gives every request its seed"
            result = Result(
                request.id,
                tokens,
                reason,
                len(request.prompt),
                0,
                seed,
                Timings(total_ms=1.0),
                SpecStats(),
                error=error,
            )
            events.append(Finished(request.id, slot, result))
        return [*events, WindowDone(record)]

    def _ending(self, request: Request, tokens: list[int]) -> str | None:
        params = request.params
        if request.prompt[-len(self.boom) :] == self.boom:
            return "error"
        if _hash(request, len(tokens), "end") % 29 == 0 and not params.ignore_eos:
            tokens[-1] = self.eos[0]
            return "stop"
        if request.watch is not None and request.watch.push(tokens[-1]):
            return "stop"
        return "length" if len(tokens) == (params.max_tokens or 40) else None

    def _record(self, keeps: list[int]) -> StepRecord:
        slots = sorted(self.running)
        return StepRecord(
            kind="batch",
            t=self.steps / 100,
            group=0,
            slots=len(slots),
            rows=len(slots),
            drafts=0,
            verified=0,
            accepted=0,
            step_ms=10.0,
            slot=slots,
            request=[self.running[s][0].id for s in slots],
            prompt=[0] * len(slots),
            L=[1] * len(slots),
            keeps=keeps,
            ctx=[1] * len(slots),
            reason=["fits"] * len(slots),
            ms={},
            bucket=len(slots),
            experts=None,
            prefix_hit_tokens=0,
            chain_off=None,
            downgrades=[],
            drafted_by=[0] * len(slots),
            accepted_by=[0] * len(slots),
        )


def _hash(request: Request, index: int, what: str) -> int:
    text = f"{request.prompt} {request.params.seed} {index} {what}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def fake_session(checkpoint: Checkpoint, config: EngineConfig) -> Session:
    return Session(checkpoint, FakeEngine(checkpoint, config))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _prepare(death: str) -> None:
    """Let the process die: `step N`, `record N` (half of it written), `begin` (sidecar written, nothing else),
    `truncated` (an old file emptied, its sidecar not yet written)."""
    kind, _, number = death.partition(" ")
    journal = strata_cli.batch.journal
    append, written = journal.Journal.append, []
    if kind == "step":
        FakeEngine.at_step = lambda self, step: _die() if step == int(number) else None  # type: ignore[method-assign]
    elif kind == "record":

        def torn(self: journal.Journal, record: bytes) -> None:
            written.append(record)
            if len(written) == int(number):
                append(self, record[: len(record) // 2])
                _die()
            append(self, record)

        journal.Journal.append = torn  # type: ignore[method-assign]
    elif kind == "begin":
        write_meta = journal._write_meta
        journal._write_meta = lambda path, meta: (write_meta(path, meta), _die())  # type: ignore[assignment]
    elif kind == "truncated":
        journal._write_meta = lambda path, meta: _die()
    elif kind == "interrupts":

        def twice(self: FakeEngine, step: int) -> None:
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

        FakeEngine.at_step = twice  # type: ignore[method-assign]


if __name__ == "__main__":
    strata_cli.commands.run.load_session = fake_session
    _prepare(os.environ.get("FAKE_DIE", ""))
    sys.exit(app.run(sys.argv[1:]))
