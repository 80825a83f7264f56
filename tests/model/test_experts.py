"""Computing every expert at once is computing each routed one on its own."""

import pytest
import torch
from strata_cli.model.layers import Experts, under
from torch import Tensor

from strata_cli.model import layers
from tests.support.engine import loaded, tiny
from tests.support.tiny import SHAPES


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 13, 16, 30])
def test_the_whole_bank_is_the_grouped_one(shape: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config, weights = loaded(tiny(shape))
    own = under(weights.main, "layers.1.mlp.")
    x = torch.randn(32, config.hidden_size, generator=torch.Generator().manual_seed(rows))

    def computed(width: int) -> Tensor:
        monkeypatch.setattr(layers, "ALL_EXPERTS_WIDTH", width)
        experts = Experts(own, config)
        assert experts.whole == (width > 0)
        return experts(x, rows)[:rows]

    assert torch.allclose(computed(1 << 20), computed(0), atol=2e-6, rtol=1e-5)
