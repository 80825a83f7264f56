"""The memory plan: what it says is what is allocated, and what does not fit is cut in order, each cut told."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from strata_cli.config import EngineConfig
from strata_cli.engine.build import load
from strata_cli.errors import StrataError
from strata_cli.model.config import load_config
from strata_cli.model.memory import MIB, MOST_PLACES, MemoryPlan, plan_memory, prefix_share
from strata_cli.model.weights.checkpoint import open_checkpoint
from strata_kernels.table import row_tile
from tests.support.tiny import make_tiny

PAGE = 64  # positions


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("model"), shape="wide", quant="int4-g32", dtype="bfloat16")


def plan(directory: Path, free: int | None = None, device: str = "cpu", **settings: Any) -> MemoryPlan:
    model = load_config(directory)
    stored = open_checkpoint(directory).find(model)
    return plan_memory(stored, model, EngineConfig(**settings), device=device, tile=row_tile(device), free=free)


def living() -> dict[int, int]:
    """Bytes of the storage behind every tensor in this process, by its address."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) is Tensor]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spec": 0, "batch": 1},
        {"accept": "rejection", "spec": 2},
        {"prefix_cache": False, "kv_dtype": "bfloat16", "ctx": 1000},
        {"prefix_cache_mib": 3, "dtype": "bfloat16", "max_batched_tokens": 64, "prefill_chunk": 64},
    ],
    ids=str,
)
def test_what_is_allocated_is_what_the_plan_says(directory: Path, settings: dict[str, Any]) -> None:
    """Every storage that came with the engine, summed; within 2 %."""
    loaded = load(directory, load_config(directory), EngineConfig(device="cpu", **settings))
    before = living()
    engine = loaded.engine(EngineConfig(device="cpu", **settings), ())
    found = sum(size for address, size in living().items() if address not in before)
    planned = plan(directory, device="cpu", **settings)
    assert engine.memory.total_bytes == planned.total_bytes
    pools = planned.total_bytes - sum(part.nbytes for part in planned.weights)
    assert abs(found - pools) <= 0.02 * pools


def test_weights_count_as_they_are_stored(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    parts = {n: t for n, t in tensors.items() if not n.endswith("weight_shape")}
    matrices = sum(t.nbytes for n, t in parts.items() if t.ndim == 2)
    vectors = sum(4 * t.numel() for t in parts.values() if t.ndim != 2)
    for device, place in (("cpu", "mapped"), ("cuda", "device")):
        weights = plan(directory, device=device).weights
        assert sum(p.nbytes for p in weights if p.format != "f32") == matrices
        assert {p.place for p in weights if p.format != "f32"} == {place}
        assert [p.nbytes for p in weights if p.format == "f32"] == [vectors]
    experts = sum(t.nbytes for n, t in parts.items() if ".experts." in n and not n.startswith("mtp."))
    assert next(p for p in weights if p.name == "routed experts").nbytes == experts
    assert {p.format for p in weights if p.name == "attention"} == {"int4 g32 (compressed-tensors)"}


def test_a_tied_head_is_counted_once(tmp_path: Path) -> None:
    make_tiny(tmp_path, shape="one-of-each")
    names = [part.name for part in plan(tmp_path).weights]
    assert "embedding and output head" in names and "output head" not in names
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert plan(tmp_path).weights[0].nbytes == embedding.nbytes


def test_pages_hold_every_context_and_the_caches_share(directory: Path) -> None:
    bare = plan(directory, ctx=1000, batch=3, prefix_cache=False)
    assert (bare.pages, bare.places) == (3 * 16 + 1, 0)
    cached = plan(directory, ctx=1000, batch=3)
    assert cached.pages == 2 * 3 * 16 + 1, "no more than the slots' own"
    assert 0 < cached.places <= MOST_PLACES
    assert cached.total_bytes - bare.total_bytes <= 256 * MIB
    small = plan(directory, ctx=1000, batch=3, prefix_cache_mib=1)
    assert bare.pages < small.pages < cached.pages and 0 < small.places < cached.places
    assert small.total_bytes - bare.total_bytes <= MIB
    assert plan(directory, prefix_cache_mib=0).places == 0


def test_a_head_that_is_not_used_has_no_pages(directory: Path) -> None:
    with_head, without = plan(directory), plan(directory, spec=0)
    assert with_head.headed and not without.headed
    assert with_head.page_bytes == 2 * without.page_bytes, "one attention layer, and the head's"
    assert without.sizes.ring == 0
    for settings in ({"drafter": "off"}, {"batch_mtp": False}):
        assert not plan(directory, **settings).headed


def test_dtypes_of_rows_and_of_keys(directory: Path) -> None:
    def kinds(device: str, **settings: Any) -> tuple[str, str]:
        found = plan(directory, device=device, **settings)
        return found.dtype, found.kv["k"].dtype

    assert kinds("cpu") == ("float32", "float32") and kinds("cuda") == ("bfloat16", "bfloat16")
    assert kinds("cpu", dtype="float16") == ("float16", "float16")
    assert kinds("cuda", kv_dtype="float32") == ("bfloat16", "float32")


def total(directory: Path, **settings: Any) -> int:
    return plan(directory, device="cuda", **settings).total_bytes


def test_a_gpu_that_holds_all_of_it(directory: Path) -> None:
    enough = total(directory)
    found = plan(directory, enough, "cuda")
    assert found.downgrades == () and found.total_bytes == enough


def test_the_prefix_cache_shrinks_first(directory: Path) -> None:
    wanted, least = plan(directory, device="cuda"), total(directory, prefix_cache=False)
    found = plan(directory, least + MIB, "cuda")
    assert found.total_bytes <= least + MIB
    assert 0 < found.places < wanted.places and found.pages >= wanted.sizes.slots * wanted.sizes.pages + 1
    assert found.downgrades == (("prefix cache", f"{found.places} of {wanted.places} places fit"),)


def test_then_slots_share_pages(directory: Path) -> None:
    bare = plan(directory, device="cuda", prefix_cache=False)
    free = bare.total_bytes - 3 * bare.page_bytes
    found = plan(directory, free, "cuda")
    assert (found.pages, found.places) == (bare.pages - 3, 0) and found.total_bytes <= free
    (pages, why), (cache, _) = found.downgrades
    assert (pages, cache) == ("KV pages", "prefix cache off")
    assert why.startswith(f"{bare.pages - 3} of ") and why.endswith("not all 4 slots can fill their context")


def test_not_even_one_context(directory: Path) -> None:
    lone = plan(directory, device="cuda", prefix_cache=False)
    spare = 64 * lone.page_bytes  # of a context of 4096 positions
    free = lone.total_bytes - lone.pages * lone.page_bytes + spare
    with pytest.raises(StrataError) as raised:
        plan(directory, free, "cuda")
    line = str(raised.value)
    assert "are left for keys and values, a context of 4096 tokens takes" in line and "\n" not in line
    assert "largest: " in line and "--ctx" in line and "--vram-reserve-mib" in line
    assert plan(directory, free + lone.page_bytes, "cuda").pages == 65


def test_a_cache_too_small_for_an_entry_is_told(tmp_path: Path) -> None:
    make_tiny(tmp_path, linear_value_head_dim=256, linear_key_head_dim=256, linear_num_value_heads=8)
    found = plan(tmp_path, prefix_cache_mib=1)
    assert found.places == 0 and found.downgrades == (("prefix cache off", "1.0 MiB hold no entry"),)


@pytest.mark.parametrize("budget, page, place", [(0, 7, 9), (100, 7, 9), (10_000, 7, 9), (10**9, 1000, 10**7)])
def test_the_caches_share_is_within_its_budget(budget: int, page: int, place: int) -> None:
    pages, places = prefix_share(budget, page, place, 500)
    assert pages * page + places * place <= budget and pages <= 500 and places <= MOST_PLACES
    if 0 < pages < 500:
        assert (places + 1) * place + pages * page > budget, "nothing is left that would hold another"


def test_the_largest_context_of_a_budget(directory: Path) -> None:
    whole = plan(directory, prefix_cache=False)
    found = whole.fit(whole.total_bytes)
    assert found == whole.ctx
    half = whole.total_bytes - 2 * PAGE * whole.page_bytes
    tokens = whole.fit(half)
    assert 0 < tokens < whole.ctx and tokens % PAGE == 0
    assert plan(directory, prefix_cache=False, ctx=tokens).total_bytes <= half
    assert whole.fit(10**12) == load_config(directory).max_position_embeddings
    with pytest.raises(StrataError, match=r"0\.0 MiB do not hold the model .* largest: .*--ctx"):
        whole.fit(0)


def test_shown_and_recorded(directory: Path) -> None:
    found = plan(directory)
    lines = found.lines()
    assert len(lines) == len(found.parts) + 1 and lines[-1].startswith("in all ")
    assert any(line.startswith("routed experts ") and line.endswith(" mapped") for line in lines)
    record = found.as_dict()
    assert record["total_bytes"] == sum(part["bytes"] for part in record["parts"]) == found.total_bytes
    assert record["mapped_bytes"] == sum(p["bytes"] for p in record["parts"] if p["place"] == "mapped")
    assert (record["pages"], record["ctx"]) == (found.pages, found.ctx)
    reserved = plan(directory, device="cuda", vram_reserve_mib=100)
    assert reserved.parts[-1].nbytes == 100 * MIB and replace(reserved, reserve=0).parts[-1].name == "sampler"
    assert "reserve" not in lines[-2] and torch.device(found.device).type == "cpu"
