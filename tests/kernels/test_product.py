"""Packed products: both siblings against recomputation in double precision, and against each other; bits that must not
depend on company; nothing read outside a weight.
"""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

from strata_kernels import compiling
from strata_kernels.formats import FORMATS, label, unpack
from strata_kernels.product import lookup, product, reference
from strata_kernels.table import choose
from strata_kernels.weight import Weight

SIBLINGS: list[ModuleType] = [reference]
if not compiling.fault():
    from strata_kernels.product import cpu

    SIBLINGS.append(cpu)

COLUMNS = (8, 32, 40, 64, 96, 192, 200, 2048)
OUTPUTS = (1, 3, 8, 17, 131, 512)
ROWS = (1, 2, 3, 4, 5, 8, 17, 64)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def dense_weight(name: str, n: int, k: int, seed: int = 0) -> tuple[Weight, torch.Tensor]:
    values = torch.randn(n, k, generator=generator(n, k, seed)).to(DTYPES[name])
    return Weight(name, {"weight": values}, (n, k)), values.double()


def packed_weight(
    bits: int,
    n: int,
    k: int,
    group: int,
    zero: bool = False,
    order: bool = False,
    scales: str = "bf16",
    seed: int = 0,
) -> tuple[Weight, torch.Tensor]:
    """A weight packed by compressed-tensors itself, and its values in double precision."""
    g = generator(bits, n, k, group, seed)
    low, high, groups = -(1 << bits - 1), (1 << bits - 1) - 1, k // group
    codes = torch.randint(low, high + 1, (n, k), generator=g, dtype=torch.int8)
    scale = (torch.rand(n, groups, generator=g) * 0.1 + 0.01).to(DTYPES[scales])
    zeros = torch.randint(low, high + 1, (n, groups), generator=g, dtype=torch.int8)
    group_of = torch.arange(k) // group
    parts = {"packed": pack_to_int32(codes, bits), "scale": scale}
    if zero:
        parts["zero"] = pack_to_int32(zeros, bits, packed_dim=0).contiguous()
    if order:
        group_of = group_of[torch.randperm(k, generator=g)]
        parts["g_idx"] = group_of.to(torch.int32)
    shift = zeros[:, group_of].double() if zero else 0.0
    return Weight(f"int{bits}", parts, (n, k)), (codes.double() - shift) * scale[:, group_of].double()


def all_kinds(n: int, k: int) -> list[tuple[Weight, torch.Tensor]]:
    found = [dense_weight(name, n, k) for name in DTYPES]
    for bits in (4, 8):
        groups = [group for group in (16, 32, 64, 128) if k % group == 0 and group < k]
        found += [packed_weight(bits, n, k, group) for group in (*groups, k)]
        group = groups[0] if groups else 4
        found += [
            packed_weight(bits, n, k, group, zero=True),
            packed_weight(bits, n, k, group, order=True),
            packed_weight(bits, n, k, group, zero=True, order=True),
            packed_weight(bits, n, k, 4),  # a word has several groups
            packed_weight(bits, n, k, group, scales="f16"),
            packed_weight(bits, n, k, group, zero=True, scales="f32"),
        ]
    return found


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("k", COLUMNS)
def test_a_format_unpacks_to_the_stored_values(k: int) -> None:
    n = 17
    for weight, values in all_kinds(n, k):
        assert torch.equal(unpack(weight, 0, n), values.float())
        assert torch.equal(unpack(weight, 3, 14), values.float()[3:14])
        ids = torch.tensor([16, 0, 3, 16])
        assert torch.equal(lookup(weight, ids), values.float()[ids])


@pytest.mark.parametrize("sibling", SIBLINGS, ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.parametrize("k", COLUMNS)
def test_a_product_is_the_sum_and_a_row_is_the_same_in_any_company(sibling: ModuleType, k: int) -> None:
    slow = sibling is reference  # a multiplication for each eight rows
    for n in (17, 131) if slow else OUTPUTS:
        x = torch.randn(64, k, generator=generator(k, 1))
        for weight, values in (
            all_kinds(n, k) if n == 17 or (n in (3, 131) and not slow) else [packed_weight(4, n, k, 8)]
        ):
            found = sibling.product(x, [weight], 64)
            assert distance(found, x.double() @ values.t()) < 2e-6, (weight.format, list(weight.parts), n)
            for rows in (3, 17) if slow else ROWS:
                assert torch.equal(sibling.product(x[64 - rows :], [weight], rows), found[64 - rows :])


@pytest.mark.parametrize("sibling", SIBLINGS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_several_weights_stand_side_by_side_and_padding_rows_are_zero(sibling: ModuleType) -> None:
    weights = [packed_weight(4, 40, 64, 32)[0], dense_weight("f32", 3, 64)[0], dense_weight("bf16", 33, 64)[0]]
    x = torch.randn(12, 64, generator=generator(5))
    found = sibling.product(x, weights, 9)
    assert found.shape == (12, 76)
    assert torch.equal(found[:9], torch.cat([sibling.product(x[:9], [weight], 9) for weight in weights], 1))
    assert not found[9:].any()
    narrow = sibling.product(x.bfloat16(), weights, 9)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, sibling.product(x.bfloat16().float(), weights, 9).bfloat16())


@pytest.mark.parametrize("sibling", SIBLINGS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_some_rows_of_a_weight_are_those_rows(sibling: ModuleType) -> None:
    x, ids = torch.randn(12, 96, generator=generator(10)), torch.tensor([130, 0, 7, 64, 7, *range(20, 60)])
    for weight, values in all_kinds(131, 96):
        found = sibling.product_at(x, weight, ids, 9)
        assert distance(found[:9], x[:9].double() @ values[ids].t()) < 2e-6
        assert not found[9:].any()
        assert torch.equal(found[8:9], sibling.product_at(x[8:9], weight, ids, 1))
        assert torch.equal(sibling.lookup(weight, ids), values[ids].float())


@pytest.mark.skipif(len(SIBLINGS) == 1, reason="no compiled kernels here")
def test_siblings_agree_on_every_kind() -> None:
    x = torch.randn(20, 200, generator=generator(6))
    for weight, _ in all_kinds(131, 200):
        assert distance(cpu.product(x, [weight], 20), reference.product(x, [weight], 20)) < 1e-5


@pytest.mark.parametrize("sibling", SIBLINGS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_number_that_is_none_is_seen_in_its_own_outputs(sibling: ModuleType) -> None:
    for bits in (4, 8):
        weight, _ = packed_weight(bits, 40, 64, 32, zero=True)
        weight.parts["scale"][33, 1] = torch.nan
        found = sibling.product(torch.zeros(5, 64), [weight], 5)
        assert found.isnan().all(0).nonzero().flatten().tolist() == [33]
    weight, _ = dense_weight("bf16", 40, 64)
    x = torch.randn(9, 64, generator=generator(7))
    x[4, 63] = torch.inf
    found = sibling.product(x, [weight], 9)
    assert (~found.isfinite()).any(1).nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize("sibling", SIBLINGS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_views_of_larger_tensors_are_read_in_place(sibling: ModuleType) -> None:
    whole = torch.randn(50, 80, generator=generator(8)).bfloat16()
    x = torch.randn(3, 79, generator=generator(9))
    for part in (whole[7:40, 1:], whole[7:40:2, :79], whole.t()[1:, :30].t()):
        weight = Weight("bf16", {"weight": part}, tuple(part.shape))
        assert distance(sibling.product(x, [weight], 3), x.double() @ part.double().t()) < 2e-6


def test_a_column_order_of_groups_that_are_not_there_is_refused() -> None:
    weight, _ = packed_weight(4, 8, 64, 32, order=True)
    weight.parts["g_idx"][5] = 2
    with pytest.raises((ValueError, IndexError)):
        product(torch.zeros(1, 64), [weight], 1)


def test_labels_say_format_and_group() -> None:
    assert label(packed_weight(4, 8, 64, 32)[0]) == "int4 g32"
    assert label(packed_weight(8, 8, 96, 96)[0]) == "int8 per channel"
    assert label(dense_weight("bf16", 8, 8)[0]) == "bf16"


def test_the_table_falls_back_to_the_reference() -> None:
    assert choose("product", ["int4", "bf16"], "cpu") == SIBLINGS[-1].__name__.rpartition(".")[2]
    assert choose("product", ["int4"], "cuda") == "reference"
    assert choose("product", ["int4", "something else"], "cpu") == "reference"
    assert set(FORMATS) == {"f32", "bf16", "f16", "int4", "int8"}


AT_THE_EDGE = """
import ctypes, mmap, sys
import torch
sys.path[:0] = sys.argv[1:]
from strata_kernels.product import cpu
from strata_kernels.weight import Weight
from tests.kernels.test_product import all_kinds, dense_weight

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
pages = []

def at_the_edge(part):
    # the part's last byte is the last before a page that nobody may read
    size = -(-part.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    view = whole[size - part.nbytes : size]
    view.copy_(part.contiguous().view(-1).view(torch.uint8))
    assert libc.mprotect(ctypes.c_void_p(whole.data_ptr() + size), PAGE, 0) == 0
    pages.append(memory)
    return view.view(part.dtype).view(part.shape)

odd = [dense_weight(name, 33, 71) for name in ("f32", "bf16", "f16")]
for n, k, kinds in [(n, k, all_kinds(n, k)) for n, k in ((1, 8), (3, 40), (17, 200), (32, 64))] + [(33, 71, odd)]:
    for weight, values in kinds:
        moved = Weight(weight.format, {name: at_the_edge(part) for name, part in weight.parts.items()}, weight.shape)
        for rows in (1, 4, 9):
            x = at_the_edge(torch.ones(rows, k))
            out = cpu.product(x, [moved], rows)
            assert torch.allclose(out.double(), values.sum(1).expand(rows, n), atol=1e-3)
print("nothing outside was read")
"""


@pytest.mark.skipif(len(SIBLINGS) == 1 or sys.platform == "win32", reason="no compiled kernels here, or no mprotect")
def test_nothing_outside_a_weight_is_read() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_EDGE, str(root), str(root / "kernels")], capture_output=True, text=True, cwd=root
    )
    assert done.stdout == "nothing outside was read\n", (done.returncode, done.stderr)
