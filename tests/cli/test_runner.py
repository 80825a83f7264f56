"""Keys of the screen: pause admits nobody, stop lets what runs finish."""

import json

from strata_cli.batch.records import PromptRecord
from strata_cli.batch.results import RecordWriter
from strata_cli.batch.runner import Job, run_batch
from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.session import read_checkpoint
from tests.cli.fake import FakeEngine, make_model


class Keyboard:
    """A screen whose keys are pressed at given ticks."""

    def __init__(self, **keys):
        self.wants_stop = self.paused = False
        self.keys, self.ticks, self.idle = keys, 0, 0

    def events(self, events):
        self.idle = 0

    def tick(self):
        self.ticks += 1
        self.idle += 1
        for key, ticks in self.keys.items():
            if self.ticks in ticks:
                setattr(self, key, not getattr(self, key))
        if self.idle > 3:
            self.paused = False


def run(tmp_path, screen, requests=10):
    checkpoint = read_checkpoint(str(make_model(tmp_path / "model")), EngineConfig(batch=2))
    engine = FakeEngine(checkpoint, EngineConfig(batch=2))
    lines, jobs = [], []
    for i in range(requests):
        prompt = checkpoint.prompt(f"prompt {i}")
        params = SamplingParams(seed=i, max_tokens=10, ignore_eos=True)
        jobs.append(Job(PromptRecord(str(i), i + 1, "x"), checkpoint.request(str(i), prompt, params)))
    outcome = run_batch(engine, jobs, RecordWriter("m", True, True), lines.append, screen)
    return engine, outcome, [json.loads(line) for line in lines]


def test_all_of_them(tmp_path):
    _, outcome, records = run(tmp_path, Keyboard())
    assert (outcome.failed, outcome.left) == (0, 0)
    assert sorted(int(r["custom_id"]) for r in records) == list(range(10))


def test_stop_finishes_what_runs(tmp_path):
    engine, outcome, records = run(tmp_path, Keyboard(wants_stop=[2]))
    assert outcome.left == 8
    assert {r["custom_id"] for r in records} == {"0", "1"}
    assert all(r["completion_tokens"] == 10 for r in records)
    assert not engine.running


def test_a_pause_loses_nobody(tmp_path):
    screen = Keyboard(paused=[2])
    engine, _, records = run(tmp_path, screen)
    assert len(records) == 10
    assert screen.ticks > engine.steps, "it waited while nothing ran"
    _, _, unpaused = run(tmp_path / "again", Keyboard())
    assert {r["custom_id"]: r for r in records} == {r["custom_id"]: r for r in unpaused}
