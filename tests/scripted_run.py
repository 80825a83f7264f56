"""A run as `strata run` drives one, with a scripted engine and pauses in place of a model: for tests in a terminal.

python -m tests.scripted_run '{"requests": 8, "pause_s": 0.01, "slow": 2}'
"""

import json
import signal
import sys
import time
import warnings
from collections.abc import Sequence

from strata_cli.engine.types import Downgrade, Event, Finished
from strata_cli.session import Orders, drive
from strata_cli.ui.live import LiveScreen, open_screen
from strata_cli.ui.snapshot import Header, Limit
from tests.scripted_engine import ScriptedEngine


class Records:
    """The observer that prints a record for each request that ends."""

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                print(json.dumps({"custom_id": event.request_id}), flush=True)


def main(asked: dict) -> int:
    pause_s, screen_options = asked.pop("pause_s", 0.01), asked.pop("screen", {})
    slow = asked.pop("slow", None)
    acceptance = tuple(0.1 if slot == slow else 0.8 for slot in range(4))
    engine = ScriptedEngine(acceptance=acceptance, **asked)
    limits = {name: Limit(*limit) for name, limit in engine.limits().items()}
    header = Header("scripted", "int4", "cpu", engine.slots, engine.spec, ("spec 4", "rows 20"), planned_bytes=2**30)
    interrupted = []
    signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    screen = open_screen(header, engine.requests, limits, **screen_options)

    def orders() -> Orders:
        return Orders(pause=screen.paused, stop=screen.wants_stop, leave=bool(interrupted))

    def tick() -> None:
        screen.tick()
        time.sleep(pause_s)

    with screen:
        print("a line for stderr", file=sys.stderr)
        warnings.warn("a warning from python", stacklevel=1)
        screen.events([Downgrade("graphs", "not captured on this card")])
        drive(engine, [Records(), screen], orders=orders, tick=tick)
    if isinstance(screen, LiveScreen):
        print(f"drawn: {screen.frames} frames", file=sys.stderr)
    print("stopped" if screen.wants_stop else "interrupted" if interrupted else "the end", file=sys.stderr)
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
