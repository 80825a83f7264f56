"""The demo model's trainer: its arithmetic is that of the family, its text depends on the seed alone."""

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from demo_text.documents import KINDS, document
from demo_training import data
from demo_training.model import DemoModel, ModelConfig

SMALL = ModelConfig(
    vocab_size=64,
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    rotary_dim=8,
    linear_key_heads=1,
    linear_value_heads=2,
    linear_key_dim=16,
    linear_value_dim=16,
    chunk=16,
    num_experts=4,
    expert_size=32,
    shared_size=32,
)


@pytest.fixture(scope="module")
def model() -> DemoModel:
    """Random weights large enough that every part shows in the logits."""
    torch.manual_seed(1)
    made = DemoModel(SMALL)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return made.eval().requires_grad_(False)


def test_the_text_depends_on_the_seed_alone() -> None:
    def texts(seed: int) -> list[tuple[str, str]]:
        r = random.Random(seed)
        return [document(r) for _ in range(50)]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_shares_of_every_phase_add_up() -> None:
    for column in (1, 2, 3):
        assert sum(entry[column] for entry in KINDS.values()) == pytest.approx(1)


def test_chunks_equal_the_recurrence(model: DemoModel) -> None:
    ids = torch.randint(0, 64, (1, 45))
    state = model.new_state()
    steps = torch.cat([model.step(int(t), state) for t in ids[0]], 1)
    torch.testing.assert_close(model.trunk(ids), steps, atol=1e-4, rtol=1e-4)


def test_documents_of_a_row_do_not_see_each_other(model: DemoModel) -> None:
    ids = torch.randint(0, 64, (1, 31))
    document = (torch.arange(31) >= 20).long()[None]
    rows = data.Rows(ids, document, torch.ones(1, 31), torch.zeros(1, 31, dtype=torch.bool))
    together = model.trunk(ids[:, :-1], rows.first(), rows.mask())
    # the convolution still reaches over the border, as it does over any start of text in the released kernels
    alone = model.trunk(ids[:, 23:-1])
    assert (together[:, 29] - alone[:, 6]).abs().max() < (model.trunk(ids[:, :-1])[:, 29] - alone[:, 6]).abs().max()
