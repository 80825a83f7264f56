"""What a model takes in memory: as planned, as allocated, and as the system counts it while it loads and runs.

python examples/memory.py [MODEL] [--tokens 32] [--batch 4] [--ctx 2048]

Loads a model directory on the CPU and builds an engine. Everything that lies in memory, every tensor's storage and
every mapped file, may be no more than the packed weights and 5 %, plus what the memory plan names beside weights; what
the system counted at its highest meanwhile may be no more than that and 256 MiB. Exits with 1 where it is. Then it
decodes `--tokens` in every slot, after which most of the mapped file has been read. Needs Linux (/proc).
"""

import argparse
import gc
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.build import load
from strata_cli.engine.types import Request
from strata_cli.model.config import load_config
from strata_cli.model.memory import MAPPED
from strata_cli.session import drive

MIB = 2**20
SPREAD, SLACK = 1.05, 256 * MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    demo = Path(__file__).parents[1] / "strata_cli/demo/model"
    parser.add_argument("model", nargs="?", type=Path, default=demo, help="default: the demo model")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ctx", type=int, default=2048)
    args = parser.parse_args()
    config = EngineConfig(batch=args.batch, ctx=args.ctx, device="cpu")

    gc.collect()
    before = status()
    Path("/proc/self/clear_refs").write_text("5")  # the highest count starts anew
    model = load_config(args.model)
    engine = load(args.model, model, config).engine(config, model.eos_token_ids)
    after = status()

    plan = engine.memory
    print("\n".join(plan.lines()), end="\n\n")
    packed = sum(part.nbytes for part in plan.weights)
    named = plan.total_bytes - packed
    mapped = sum(file.stat().st_size for file in mapped_files(args.model))
    held = mapped + sum(storages())
    peak = after["VmHWM"] - before["VmRSS"]
    print(
        f"packed weights          {mib(packed)}, {mib(sum(p.nbytes for p in plan.weights if p.place == MAPPED))} mapped"
    )
    print(f"beside them, as planned {mib(named)}")
    print(f"held                    {mib(held)}: {mib(mapped)} of files, {mib(held - mapped)} of tensors")
    print(f"resident, loaded        {resident(before, after)}; at its highest {mib(peak)}")
    for slot in range(args.batch):
        prompt = [(37 * slot + 11 * i) % model.vocab_size for i in range(64)]
        engine.submit(Request(str(slot), prompt, SamplingParams(temperature=1.0, seed=slot, max_tokens=args.tokens)))
    drive(engine, [])
    print(f"resident, {args.tokens} tokens on  {resident(before, status())}")
    limit = SPREAD * packed + named
    bad = held > limit or peak > limit + SLACK
    verdict = "too much" if bad else "ok"
    print(f"held {mib(held)} of {mib(limit)} allowed, peak {mib(peak)} of {mib(limit + SLACK)}: {verdict}")
    sys.exit(bad)


def status() -> dict[str, int]:
    """Bytes by name, as the system counts this process: VmRSS = RssAnon + RssFile + RssShmem, VmHWM its highest."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {line[0].rstrip(":"): 1024 * int(line[1]) for line in lines if line[-1] == "kB"}


def resident(before: dict[str, int], now: dict[str, int]) -> str:
    grown = {name: now[name] - before[name] for name in ("VmRSS", "RssFile", "RssAnon")}
    return f"{mib(grown['VmRSS'])} more: {mib(grown['RssFile'])} of mapped files, {mib(grown['RssAnon'])} of its own"


def mapped_files(directory: Path) -> set[Path]:
    """Files of the directory that are mapped into this process."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return {Path(line[5]) for line in lines if len(line) == 6 and line[5].startswith(str(directory.resolve()))}


def storages() -> Iterable[int]:
    """Bytes of every tensor's storage in this process that is not a mapped file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(".safetensors")]
    places = [(int(start, 16), int(stop, 16)) for start, stop in ranges]
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return [size for at, size in found.items() if not any(start <= at < stop for start, stop in places)]


def mib(size: float) -> str:
    return f"{size / MIB:,.1f} MiB"


if __name__ == "__main__":
    main()
