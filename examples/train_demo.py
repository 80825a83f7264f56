"""Train and export the demo model.

python examples/train_demo.py train --minutes 90 --folder build/demo
python examples/train_demo.py train --minutes 90 --folder build/demo --resume
python examples/train_demo.py export --folder build/demo --out strata_cli/demo/model --int4 all
python examples/evaluate_demo.py
"""

import argparse

from demo_training import export, training


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="command", required=True)
    t = sub.add_parser("train", help="train from the start, or go on from the last checkpoint")
    t.add_argument("--folder", required=True)
    t.add_argument("--minutes", type=float, default=90.0)
    t.add_argument("--until", default="", help="HH:MM today, in place of --minutes")
    t.add_argument("--resume", action="store_true")
    t.add_argument("--steps", type=int, default=-1, help="stop after so many steps")
    t.add_argument("--seed", type=int, default=0)
    t.add_argument("--length", type=int, default=384)
    t.add_argument("--batch", type=int, default=4, help="rows of one worker in one step")
    t.add_argument("--workers", type=int, default=2)
    t.add_argument("--num-layers", type=int, default=6)
    t.add_argument("--hidden-size", type=int, default=192)
    t.add_argument("--muon-rate", type=float, default=0.01)
    t.add_argument("--adam-rate", type=float, default=1.5e-3)
    t.add_argument("--embedding-rate", type=float, default=3e-3)
    t.add_argument("--draft-weight", type=float, default=0.3)
    t.add_argument("--copy-tokens", type=float, default=1.6, help="millions of tokens from the copying phase")
    t.add_argument("--tasks-from", type=float, default=0.7, help="share of the time before sums and rows")
    t.add_argument("--name-weight", type=float, default=3.0, help="loss weight of a name that the text already holds")
    t.add_argument("--report", type=int, default=50)
    t.add_argument("--keep-minutes", type=float, default=8.0)
    t.add_argument("--validate-minutes", type=float, default=4.0)
    t.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    t.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    t.set_defaults(run=training.train)
    e = sub.add_parser("export", help="write a checkpoint as a model directory")
    e.add_argument("--folder", required=True, help="where training left it")
    e.add_argument("--checkpoint", default="last.safetensors", help="its name in the folder")
    e.add_argument("--out", required=True)
    e.add_argument("--int4", default="", help="parts of module names, with commas, or all: 4 bits, else 8")
    e.add_argument("--dense", action="store_true", help="float32, experts stacked")
    e.set_defaults(run=export.export)
    return p


def main() -> None:
    """Run the command."""
    args = parser().parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
