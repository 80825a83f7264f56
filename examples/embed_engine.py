"""The engine inside a program of your own: two requests side by side, their tokens as they leave.

python examples/embed_engine.py ["first prompt" "second prompt"]
"""

import sys
from collections.abc import Sequence

from strata_cli.config import EngineConfig
from strata_cli.engine.types import Event, Finished, Tokens
from strata_cli.session import drive, load_session, read_checkpoint
from strata_cli.text.tokenizer import Tokenizer


class Printer:
    """An observer: gets the events of each window."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                print(f"{event.request_id}: {self.tokenizer.decode(event.token_ids)!r}")
            elif isinstance(event, Finished):
                kept = event.result.spec.mean_acceptance_length or 0.0
                print(f"{event.request_id} ends ({event.result.finish_reason}): {kept:.2f} tokens a window")


def main() -> None:
    prompts = sys.argv[1:] or ["Tell me a story about Mia and a kite.", "What is 12 + 7?"]
    config = EngineConfig(batch=2, spec=4)
    with load_session(read_checkpoint("demo", config), config) as session:
        for i, text in enumerate(prompts):
            params = session.checkpoint.params({"temperature": 0.0, "max_tokens": 120})
            session.engine.submit(session.request(f"request-{i}", [{"role": "user", "content": text}], params))
        drive(session.engine, [Printer(session.tokenizer)])


if __name__ == "__main__":
    main()
