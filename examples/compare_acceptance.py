"""Three ways to draft and accept under sampling, measured on the same prompts: coupled, rejection, greedy exact match.

python examples/compare_acceptance.py [PROMPTS.jsonl] [--model demo] [--spec 4] [--max-tokens 120]

Coupled draws drafts with the noise of the token they guess (the default); rejection is min(1, p/q) with the residual;
greedy exact match drafts the argmax and keeps it where the sampled token happens to be the same (most local engines).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from strata_cli.batch.records import parse
from strata_cli.config import EngineConfig
from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_cli.engine.engine import Engine
from strata_cli.engine.tally import merge_spec
from strata_cli.engine.types import Event, Finished, SpecStats
from strata_cli.engine.window import Share
from strata_cli.session import drive, load_session, read_checkpoint
from strata_kernels.head.pool import Draws, Manner


class GreedyDrafter(MtpDrafter):
    """The MTP head's argmax, whatever the request's temperature."""

    def _draws(self, chains: Sequence[Share], picked: Sequence[int], depth: int) -> Draws:
        draws = super()._draws(chains, picked, depth)
        draws.manners = (Manner(None, greedy=True),)
        return draws


class Counts:
    """The drafting of all requests that ended."""

    def __init__(self) -> None:
        self.spec = SpecStats()

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                merge_spec(self.spec, event.result.spec)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="?", type=Path, default=Path(__file__).parent / "prompts.jsonl")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--spec", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=120)
    args = parser.parse_args()
    records = parse(args.prompts.read_bytes(), args.prompts.name)
    print(f"{'temperature':>11}  {'way':<18}{'accepted':>9}{'tokens/window':>15}  by position (cumulative)")
    for temperature in (0.7, 1.0):
        for way in ("coupled", "rejection", "greedy exact match"):
            accept = "rejection" if way == "rejection" else "coupled"
            config = EngineConfig(spec=args.spec, mtp_varlen=False, accept=accept)
            with load_session(read_checkpoint(args.model, config), config) as session:
                engine = session.engine
                assert isinstance(engine, Engine)
                if way == "greedy exact match":
                    engine.drafters["mtp"] = GreedyDrafter(engine.runner)
                for i, record in enumerate(records):
                    fixed = {"temperature": temperature, "seed": i, "max_tokens": args.max_tokens}
                    given = {k: v for k, v in record.params.items() if k in ("stop", "repetition_penalty")}
                    params = session.checkpoint.params({"top_k": 0, "top_p": 1.0}, given, fixed)
                    engine.submit(session.request(record.id, record.prompt, params))
                drive(engine, [counts := Counts()])
            total = counts.spec
            places = " ".join(f"{p:.2f}" for p in total.per_position())
            rate, length = total.acceptance_rate or 0.0, total.mean_acceptance_length or 0.0
            print(f"{temperature:>11}  {way:<18}{rate:>9.3f}{length:>15.2f}  {places}")


if __name__ == "__main__":
    main()
