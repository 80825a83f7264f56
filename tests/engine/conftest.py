"""What tests of the engine share."""

from collections.abc import Callable, Iterator

import pytest

from strata_kernels import table


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Call it with the kernels that may be compiled: the others are their specification from then on."""

    def only(*kernels: str) -> None:
        monkeypatch.setattr(table, "FAST", {key: what for key, what in table.FAST.items() if key[0] in kernels})
        table.sibling.cache_clear()

    yield only
    table.sibling.cache_clear()


@pytest.fixture(params=["fastest", "reference"])
def siblings(request: pytest.FixtureRequest, compiled: Callable[..., None]) -> str:
    """The kernels that the table chooses, or the specification alone."""
    if request.param == "reference":
        compiled()
    name: str = request.param
    return name
