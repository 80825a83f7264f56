"""Reads a step-statistics file with nothing but the standard library: acceptance by slot, and who waited for whom.

    strata run examples/prompts.jsonl -o out.jsonl --step-stats steps.jsonl
    python examples/read_step_stats.py steps.jsonl

`strata inspect steps.jsonl` says more, its --help explains every field; this shows how to get at the numbers yourself.
"""

import json
import sys
from collections import defaultdict


def main(path: str) -> None:
    tokens = seconds = 0.0
    counts: list[defaultdict[int, int]] = [defaultdict(int) for _ in range(5)]
    windows, verified, accepted, kept, sat_out = counts
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                window = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a run that was cut off
            if "schema" in window:  # a header: one a run
                print(f"model {window['model']}, settings {window['config']}")
                continue
            seconds += window["step_ms"] / 1000
            tokens += sum(window["keeps"])
            for i, slot in enumerate(window["slot"]):
                L, keeps = window["L"][i], window["keeps"][i]
                if L == 0:
                    sat_out[slot] += window["reason"][i] == "sitout"
                    continue  # it read its prompt, or sat this window out
                windows[slot] += 1
                kept[slot] += keeps
                verified[slot] += window["drafted_by"][i]
                accepted[slot] += window["accepted_by"][i]
    print(f"{tokens:,.0f} tokens in {seconds:.1f} s of windows")
    for slot in sorted(windows):
        rate = f"{accepted[slot] / verified[slot]:.1%}" if verified[slot] else "-"
        mean = kept[slot] / windows[slot]
        print(f"slot {slot}: {windows[slot]} windows, {mean:.2f} tokens each, {rate} accepted, sat out {sat_out[slot]}")


if __name__ == "__main__":
    main(sys.argv[1])
