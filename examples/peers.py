"""strata beside llama.cpp and transformers on the same weights and greedy chat prompts, in alternating order.

python examples/peers.py [PROMPTS.jsonl ...] [--llama-server PATH --gguf F32.gguf --gguf Q8_0.gguf ...]
                         [--transformers DIR] [--each 6] [--max-tokens 160] [--rounds 3] [--json]

Arms: strata and, for every --gguf, llama.cpp's server, each with one and four slots, with and without MTP; `generate`
of transformers, one prompt at a time. Each arm runs all prompts once a round: A B C, C B A, ... Tokens per second are
tokens over the time from the first request's arrival to the last token; medians over rounds, ratios round by round.
strata is a fresh process each time and not warmed up, its times are those of its records (loading is not counted);
llama.cpp is a fresh server, warmed up by four prompts, its times are the client's. Texts are compared with those of
strata, one slot without drafts. Only a file of the same weights (F32) can agree, so the first --gguf is taken for that
one and has its keys and values in float32; the others have what llama.cpp prefers. No prompt cache anywhere.

Arms of one slot also give the first token of a prompt of --prompt-tokens ids: one at a time, the first of three not
counted. llama.cpp's speed of reading is its own figure, the others' is tokens over the time to the first token.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from strata_cli import __version__
from strata_cli.batch.records import PromptRecord
from strata_cli.bench.cases import read_file
from strata_cli.bench.figures import order, ratios
from strata_cli.bench.measure import from_records
from strata_cli.config import EngineConfig
from strata_cli.session import Checkpoint, read_checkpoint

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
KINDS = sorted((Path(__file__).parent / "kinds").glob("*.jsonl"))
STRATA = (sys.executable, "-m", "strata_cli")
WARM = 4  # prompts
FIRSTS = 3  # prompts whose first token is timed


@dataclass(frozen=True, slots=True)
class Run:
    """All prompts once: tokens per second and texts by id."""

    tok_s: float
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class First:
    """One long prompt: its first token and the speed of reading it."""

    ttft_ms: float
    tok_s: float


class Way(Protocol):
    """An engine with its settings."""

    def run(self, prompts: Sequence[Mapping[str, Any]]) -> Run: ...
    def first(self, prompts: Sequence[Sequence[int]]) -> list[First]: ...


@dataclass(slots=True)
class Arm:
    """A way, and what it came to by round."""

    name: str
    way: Way
    alone: bool  # reads one prompt at a time: its first token is timed
    runs: list[Run] = field(default_factory=list)
    firsts: list[First] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Strata:
    """`strata run` in a process of its own."""

    model: str
    flags: Sequence[str]

    def run(self, prompts: Sequence[Mapping[str, Any]]) -> Run:
        records = self._records(prompts)
        return Run(from_records(records, ()).tok_s, {r["custom_id"]: r["text"].strip() for r in records})

    def first(self, prompts: Sequence[Sequence[int]]) -> list[First]:
        lines = [{"id": str(i), "prompt": list(p), "max_tokens": 1, "temperature": 0} for i, p in enumerate(prompts)]
        # one after another: what a request waits for the only slot is not part of prefill_ms
        taken = {r["custom_id"]: r["timings"]["prefill_ms"] for r in self._records(lines)}
        return [First(taken[str(i)], 1000 * len(p) / taken[str(i)]) for i, p in enumerate(prompts)]

    def _records(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            prompts, out = Path(folder) / "prompts.jsonl", Path(folder) / "out.jsonl"
            prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            wanted = ("--simple", "--with-tokens", "--no-prefix-cache", "-q", "-o", str(out))
            command = [*STRATA, "run", str(prompts), "--model", self.model, *self.flags, *wanted]
            ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
            if ran.returncode:
                sys.exit(f"error: strata run ended with {ran.returncode}: {ran.stderr.strip()}")
            return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True)
class Llama:
    """llama.cpp's server, started for each run and ended with it."""

    server: str
    gguf: str
    slots: int
    drafts: int
    exact: bool  # keys and values in float32

    def run(self, prompts: Sequence[Mapping[str, Any]]) -> Run:
        with self._serving() as url, ThreadPoolExecutor(self.slots) as pool:

            def one(line: Mapping[str, Any]) -> tuple[str, str, int]:
                wanted = {name: line[name] for name in ("messages", "max_tokens", "temperature")}
                said = ask(f"{url}/v1/chat/completions", {**wanted, "cache_prompt": False})
                return line["id"], said["choices"][0]["message"]["content"], said["usage"]["completion_tokens"]

            list(pool.map(one, prompts[:WARM]))
            began = time.perf_counter()
            found = list(pool.map(one, prompts))
            wall = time.perf_counter() - began
        return Run(sum(tokens for *_, tokens in found) / wall, {id: text.strip() for id, text, _ in found})

    def first(self, prompts: Sequence[Sequence[int]]) -> list[First]:
        found = []
        with self._serving() as url:
            for prompt in prompts:
                wanted = {"prompt": list(prompt), "n_predict": 1, "temperature": 0, "cache_prompt": False}
                began = time.perf_counter()
                said = ask(f"{url}/completion", wanted)
                found.append(First(1000 * (time.perf_counter() - began), said["timings"]["prompt_per_second"]))
        return found

    @contextmanager
    def _serving(self) -> Iterator[str]:
        port = free_port()
        command = [self.server, "-m", self.gguf, "-t", str(CORES), "-tb", str(CORES), "-ngl", "0", "--no-webui"]
        command += ["-np", str(self.slots), "-c", str(1024 * self.slots), "--host", "127.0.0.1", "--port", str(port)]
        if self.exact:
            command += ["-ctk", "f32", "-ctv", "f32"]
        if self.drafts:
            command += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(self.drafts)]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
            try:
                url = f"http://127.0.0.1:{port}"
                if not healthy(url, process):
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip().splitlines()
                    sys.exit(f"error: {self.server} does not serve {self.gguf}: {said[-1] if said else 'nothing said'}")
                yield url
            finally:
                process.kill()
                process.wait()


@dataclass(frozen=True, slots=True)
class Transformers:
    """transformers' `generate`, one prompt at a time, in this process."""

    model: Any
    checkpoint: Checkpoint

    def run(self, prompts: Sequence[Mapping[str, Any]]) -> Run:
        import torch

        texts, tokens, began = {}, 0, time.perf_counter()
        torch.set_num_threads(CORES)
        for line in prompts:
            ids = self.checkpoint.prompt(line["messages"], {}).ids
            said = self._generate(ids, line["max_tokens"])
            tokens += len(said)
            texts[line["id"]] = [t for t in said if t not in self.checkpoint.eos_token_ids]
        wall = time.perf_counter() - began
        assert self.checkpoint.tokenizer is not None
        decode = self.checkpoint.tokenizer.decode
        return Run(tokens / wall, {id: decode(ids).strip() for id, ids in texts.items()})

    def first(self, prompts: Sequence[Sequence[int]]) -> list[First]:
        found = []
        for prompt in prompts:
            began = time.perf_counter()
            self._generate(prompt, 1)
            took = time.perf_counter() - began
            found.append(First(1000 * took, len(prompt) / took))
        return found

    def _generate(self, ids: Sequence[int], most: int) -> list[int]:
        import torch

        eos = list(self.checkpoint.eos_token_ids)
        given = torch.tensor([list(ids)])
        settings = {"max_new_tokens": most, "do_sample": False, "eos_token_id": eos, "pad_token_id": eos[0]}
        said: list[int] = self.model.generate(given, attention_mask=torch.ones_like(given), **settings)[0].tolist()
        return said[len(ids) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[str(file) for file in KINDS], help="default: examples/kinds")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--gguf", action="append", default=[], help="may be repeated; the first: the same weights, F32")
    parser.add_argument("--llama-drafts", type=int, default=3, help="of llama.cpp's MTP; default 3")
    parser.add_argument("--transformers", metavar="DIR", help="the same weights as transformers reads them")
    parser.add_argument("--each", type=int, default=6, help="how many chat prompts of each file; default 6")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--prompt-tokens", type=int, default=512, help="of the prompt whose first token is timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    args = parser.parse_args()
    if bool(args.llama_server) != bool(args.gguf):
        parser.error("--llama-server and --gguf go together")
    if args.rounds < 1 or args.each < 1 or args.prompt_tokens < 1:
        parser.error("--rounds, --each and --prompt-tokens are 1 or more")
    checkpoint = read_checkpoint(args.model, EngineConfig())
    records = [record for file in args.files for record in chats(file)[: args.each]]
    if not records:
        parser.error("no chat prompts in these files")
    prompts = [
        {"id": f"p{i}", "messages": record.prompt, "max_tokens": args.max_tokens, "temperature": 0}
        for i, record in enumerate(records)
    ]
    longs = long_prompts(checkpoint, records, args.prompt_tokens)
    arms = make_arms(args, checkpoint)
    for number, turn in enumerate(order(len(arms), args.rounds), start=1):
        for arm in (arms[i] for i in turn):
            arm.runs.append(run := arm.way.run(prompts))
            print(f"round {number}: {arm.name}: {run.tok_s:.0f} tok/s", file=sys.stderr, flush=True)
            if arm.alone:
                arm.firsts += arm.way.first(longs)[1:]
    found = report(arms, args, len(prompts))
    print(json.dumps(found, ensure_ascii=False) if args.json else tables(found))


def make_arms(args: argparse.Namespace, checkpoint: Checkpoint) -> list[Arm]:
    """One and four slots, with and without MTP, of each engine; the first is strata, one slot without drafts."""
    arms = []
    for slots, words in ((1, "1 slot"), (4, "4 slots")):
        for mtp in (False, True):
            what = f"{words}, MTP" if mtp else words
            flags = ("--batch", str(slots), "--spec", "4" if mtp else "0")
            arms.append(Arm(f"strata, {what}", Strata(args.model, flags), slots == 1))
            for i, gguf in enumerate(args.gguf):
                drafts = args.llama_drafts if mtp else 0
                way = Llama(args.llama_server, gguf, slots, drafts, exact=i == 0)
                arms.append(Arm(f"llama.cpp {Path(gguf).stem}, {what}", way, slots == 1))
    if args.transformers:
        try:
            from transformers import AutoModelForCausalLM
        except ImportError:
            sys.exit("error: --transformers: transformers is not installed\nhint: pip install 'transformers>=5.2'")
        model = AutoModelForCausalLM.from_pretrained(args.transformers, dtype="float32").eval()
        arms.append(Arm("transformers, generate", Transformers(model, checkpoint), True))
    return arms


def chats(file: str) -> list[PromptRecord]:
    """The records of a file that are conversations."""
    return [record for record in read_file(file) if isinstance(record.prompt, list) and is_chat(record.prompt)]


def is_chat(prompt: Sequence[Any]) -> bool:
    return bool(prompt) and not isinstance(prompt[0], int)


def long_prompts(checkpoint: Checkpoint, records: Sequence[PromptRecord], many: int) -> list[list[int]]:
    """Token ids of the prompts one after another, `many` of them, each time from another place."""
    ids = [i for record in records for i in checkpoint.prompt(record.prompt, {}).ids]
    return [[ids[(7 * shift + 3 + i) % len(ids)] for i in range(many)] for shift in range(FIRSTS)]


def report(arms: Sequence[Arm], args: argparse.Namespace, prompts: int) -> dict[str, Any]:
    """Everything that was measured."""
    texts = arms[0].runs[0].texts
    found = [
        {
            "name": arm.name,
            "tok_s": [round(run.tok_s, 2) for run in arm.runs],
            "median_tok_s": round(median(run.tok_s for run in arm.runs), 2),
            "ttft_ms": round(median(f.ttft_ms for f in arm.firsts), 2) if arm.firsts else None,
            "prefill_tok_s": round(median(f.tok_s for f in arm.firsts), 1) if arm.firsts else None,
            "same_text": min(sum(run.texts[id] == texts[id] for id in texts) for run in arm.runs),
        }
        for arm in arms
    ]
    return {
        "version": __version__,
        "cores": CORES,
        "prompts": prompts,
        "max_tokens": args.max_tokens,
        "prompt_tokens": args.prompt_tokens,
        "rounds": args.rounds,
        "arms": found,
        "ratios": ratios(found),
    }


def tables(found: Mapping[str, Any]) -> str:
    """The report as Markdown: the arms, and strata over the best of each other engine with as many slots."""
    lines = [
        f"{found['prompts']} greedy chat prompts, {found['cores']} cores, median of {found['rounds']} rounds; "
        f"a prompt of {found['prompt_tokens']} tokens",
        "",
        "| arm | tok/s | all rounds | same text | first token, ms | prompt tok/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm in found["arms"]:
        spread = f"{min(arm['tok_s']):,.0f} to {max(arm['tok_s']):,.0f}"
        same = f"{arm['same_text']} of {found['prompts']}"
        row = (arm["name"], f"{arm['median_tok_s']:,.0f}", spread, same)
        first = (f"{arm['ttft_ms']:.1f}", f"{arm['prefill_tok_s']:,.0f}") if arm["ttft_ms"] else ("", "")
        lines.append(f"| {' | '.join((*row, *first))} |")
    lines += ["", "| strata over | ratio | all rounds |", "| --- | --- | --- |"]
    ours = [arm for arm in found["arms"] if arm["name"].startswith("strata")]
    for arm in ours:
        for base in rivals(arm["name"], found["arms"]):
            pair = ratios([base, arm])[0]
            spread = f"{pair['low']:.2f} to {pair['high']:.2f}"
            lines.append(f"| {arm['name']} / {base['name']} | {pair['median']:.2f} | {spread} |")
    return "\n".join(lines)


def rivals(name: str, arms: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What strata's arm is held against: the same settings and weights, the best with as many slots, and generate."""
    what = name.removeprefix("strata, ")
    slots = what.removesuffix(", MTP")
    llama = [arm for arm in arms if arm["name"].startswith("llama.cpp")]
    same = [arm for arm in llama if arm["name"].endswith(f", {what}")][:1]
    many = [arm for arm in llama if f", {slots}" in arm["name"]]
    best = [max(many, key=lambda arm: arm["median_tok_s"])] if many else []
    own = [arm for arm in arms if arm["name"].startswith("transformers")]
    return list({arm["name"]: arm for arm in (*same, *best, *own)}.values())


def ask(url: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(wanted).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def healthy(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Whether the server answers within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).read()
            return True
        except OSError:
            time.sleep(0.05)
    return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


if __name__ == "__main__":
    main()
