"""The head of both siblings against plain torch: norm, scores, ids that do not exist or are not asked for, padding."""

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels import compiling
from strata_kernels.head import cpu, reference
from strata_kernels.head.pool import Drawn, Draws, Manner, SamplerPool
from strata_kernels.params import HeadParams, HeadWeights
from strata_kernels.weight import Weight

DIM, VOCAB, REAL, SLOTS = 64, 131, 120, 3
SIBLINGS = [reference] if compiling.fault() else [reference, cpu]


def weights(stored: str) -> tuple[HeadWeights, Tensor]:
    """And the matrix as numbers."""
    g = torch.Generator().manual_seed(1)
    matrix = torch.randn(VOCAB, DIM, generator=g)
    norm = 1 + 0.2 * torch.randn(DIM, generator=g)
    if stored == "bf16":
        part = matrix.to(torch.bfloat16)
        return HeadWeights(norm, Weight("bf16", {"weight": part}, (VOCAB, DIM))), part.float()
    return HeadWeights(norm, Weight("f32", {"weight": matrix}, (VOCAB, DIM))), matrix


def pool() -> SamplerPool:
    one, whole = torch.ones(SLOTS), torch.zeros(SLOTS, VOCAB)
    off = torch.full((SLOTS,), -torch.inf)
    counts, seen = whole.to(torch.int32), whole.bool()
    return SamplerPool(one, one, off, one, 0 * one, 0 * one, torch.arange(SLOTS), counts, seen, whole)


def draws(rows: list[int], count: int, ids: Tensor | None = None) -> Draws:
    n = len(rows)
    nothing, none = torch.zeros(n, dtype=torch.int64), torch.zeros(SLOTS, 0, dtype=torch.int64)
    slots = torch.arange(n) % SLOTS
    drawn = (Manner(None, True),) if count else ()
    return Draws(torch.tensor(rows), slots, nothing, nothing, none, count, drawn, ids=ids, probabilities=True)


def run(sibling: ModuleType, x: Tensor, asked: Draws, stored: str = "f32") -> Drawn:
    params = HeadParams(DIM, VOCAB, REAL, 1e-5)
    found: Drawn = sibling.head(x, asked, pool(), weights(stored)[0], params)
    return found


def rows(n: int = 24) -> Tensor:
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("sibling", SIBLINGS)
@pytest.mark.parametrize("stored", ["f32", "bf16"])
def test_rows_scores_and_tokens(sibling: ModuleType, stored: str) -> None:
    """Every row is normed, the wanted ones are scored; ids behind the real ones never win."""
    x, wanted = rows(), [5, 0, 23, 5, 11]
    found = run(sibling, x, draws(wanted, 5), stored)
    own, matrix = weights(stored)
    hidden = F.rms_norm(x.double(), (DIM,), own.norm.double(), 1e-5)
    assert torch.allclose(found.hidden.double(), hidden, atol=1e-5)
    scores = hidden[wanted] @ matrix.double().t()
    assert torch.allclose(found.scores[:, :REAL].double(), scores[:, :REAL], atol=1e-4)
    assert (found.scores[:, REAL:] == -torch.inf).all()
    best = scores[:, :REAL].max(-1)
    assert found.tokens.tolist() == best.indices.tolist()
    assert torch.allclose(found.best.double(), best.values, atol=1e-4)
    assert found.probability is not None
    expected = scores[:, :REAL].softmax(-1).amax(-1)
    assert torch.allclose(found.probability.double(), expected, atol=1e-5)


@pytest.mark.parametrize("sibling", SIBLINGS)
def test_a_draft_vocabulary(sibling: ModuleType) -> None:
    """Scores of the ids that are asked for are those of the whole head, bit by bit; the others are out."""
    x, ids = rows(), torch.tensor([0, 3, 17, 40, 41, 119])
    whole, some = run(sibling, x, draws([1, 2, 3], 3)), run(sibling, x, draws([1, 2, 3], 3, ids))
    assert torch.allclose(some.scores[:, ids], whole.scores[:, ids], atol=1e-5)
    others = [i for i in range(VOCAB) if i not in ids.tolist()]
    assert (some.scores[:, others] == -torch.inf).all()
    assert some.tokens.tolist() == ids[whole.scores[:, ids].argmax(-1)].tolist()


@pytest.mark.parametrize("sibling", SIBLINGS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_padding_changes_no_draw(sibling: ModuleType, count: int) -> None:
    """Of a window that draws nothing, too: rows are normed all the same."""
    x = rows()
    padded = run(sibling, x, draws([7, 8, 9, 0, 0, 0, 0, 0], count))
    bare = run(sibling, x, draws([7, 8, 9], 3))
    assert torch.equal(padded.hidden, bare.hidden)
    assert torch.equal(padded.tokens[:count], bare.tokens[:count])
    assert torch.equal(padded.scores[:count], bare.scores[:count])


@pytest.mark.parametrize("sibling", SIBLINGS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_a_number_is_told_and_stays_alone(sibling: ModuleType, bad: float) -> None:
    x = rows()
    whole = run(sibling, x, draws([1, 2, 3], 3))
    x[2, 5] = bad
    found = run(sibling, x, draws([1, 2, 3], 3))
    assert found.best.isfinite().tolist() == [True, False, True]
    assert 0 <= int(found.tokens[1]) < VOCAB
    for i in (0, 2):
        assert torch.equal(found.scores[i], whole.scores[i]) and found.tokens[i] == whole.tokens[i]
