"""`strata parity` on a random checkpoint: it agrees with itself, and a faulty engine is found."""

import json
from pathlib import Path

import pytest

from strata_cli import app
from strata_cli.engine.drafters import Proposal
from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_cli.engine.sampling import SlotSampler
from tests.support.tiny import make_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "model"
    return make_tiny(directory, seed=3, agree=0.8, eos_token_id=None)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [{"id": str(n), "prompt": [(7 * i + n) % 131 for i in range(n)]} for n in (5, 70, 18)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def parity(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = app.run(["parity", *map(str, args)])
    return code, *capfd.readouterr()


def test_a_sound_engine_agrees_in_every_way(model, prompts, capfd):
    code, out, err = parity(capfd, prompts, "-m", model, "--max-tokens", 12, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["equal"] is True
    assert found["differences"] == []
    assert len({c["manner"] for c in found["cells"]}) == 6
    assert len({c["way"] for c in found["cells"]}) == 11
    assert all(c["compared"] == c["tokens"] == c["bits"] >= 3 for c in found["cells"])
    assert any(c["drafts"] == c["compared"] for c in found["cells"])
    # The matrix tried what it claims to have tried: drafts held, and prompt tokens came from the cache.
    assert all(c["accepted"] > 0 for c in found["cells"] if c["way"] == "4 slots, fixed drafts")
    assert all(c["cached_tokens"] == 64 for c in found["cells"] if c["way"] == "prefix-cache hit")


def test_noise_by_slot_is_found(model, prompts, capfd, monkeypatch):
    admit = SlotSampler.admit

    def shifted(self, slot):
        admit(self, slot)
        self.pool.seeds[slot.index] += slot.index

    monkeypatch.setattr(SlotSampler, "admit", shifted)
    code, out, _ = parity(capfd, prompts, "-m", model, "--max-tokens", 12, "--temperature", 1.0)
    assert code == 1
    assert "DIFFERENT" in out
    line = next(x for x in out.splitlines() if "tokens differ" in x)
    assert "4 slots" in line
    assert "completion token" in line
    assert line.count("logit margin") == 2
    # Alone, slot 0 has the noise of the base.
    alone = next(x for x in out.splitlines() if x.startswith("one slot"))
    assert alone.split()[4:6] == ["6/6", "6/6"]


def test_a_drafter_that_sees_its_neighbours_is_found_by_its_counts(model, prompts, capfd, monkeypatch):
    lay = MtpDrafter.lay

    def worse(self, shares, others):
        found = lay(self, shares, others)
        if len(shares) < 2:
            return found
        return Proposal(found.made, {slot: [0] * made.drafts for slot, made in found.made.items()})

    monkeypatch.setattr(MtpDrafter, "lay", worse)
    code, out, _ = parity(capfd, prompts, "-m", model, "--max-tokens", 12, "--temperature", 0, "--json")
    assert code == 1
    found = json.loads(out)
    assert {d["what"] for d in found["differences"]} == {"drafts"}
    assert all(c["tokens"] == c["compared"] for c in found["cells"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--batch", 1), "--batch 1"),
        (("--spec", 0), "drafts are off"),
        (("--accept", "rejection"), "--accept rejection"),
    ],
)
def test_nothing_to_compare_is_refused(model, capfd, flags, named):
    code, out, err = parity(capfd, "-m", model, *flags)
    assert (code, out) == (2, "")
    assert named in err
