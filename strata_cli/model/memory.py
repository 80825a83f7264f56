"""What will lie in memory, from headers and settings, before anything is allocated. No torch.

The builder allocates the pools of a `MemoryPlan`, the screen and the statistics header show its parts, and the error of
a model that does not fit quotes them. Weights count as they are stored; on a CPU they are mapped files, which the
system may drop from memory and read again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata_cli.config import EngineConfig
from strata_cli.errors import StrataError
from strata_cli.model.families import Bank, Block, ModelConfig, Vector
from strata_cli.model.weights.stored import StoredBlock, StoredModel, StoredWeight
from strata_kernels.layout import (
    PAGE_TOKENS,
    Array,
    Arrays,
    WindowSizes,
    kv_pool,
    nbytes,
    recurrent_pool,
    sampler_pool,
    table_pages,
    window_buffers,
)
from strata_kernels.params import AttentionParams, ExpertsParams

MIB = 2**20
RING_ROWS = 32  # hidden rows of a slot that may wait for the MTP head beside those of a window
ENTRY_PAGES = 8  # pages that a prefix-cache entry adds to those it shares: entries of long prompts lie 512 tokens apart
MOST_PLACES = 4096  # of the prefix cache; more would cost more to search than they save
NAMED = 3  # parts that an error quotes

MAPPED, HOST, DEVICE = "mapped", "host", "device"

# Kind of block -> what its own matrices are called; routed experts and small tensors are counted apart
KINDS = {
    "attention": "attention",
    "gated_delta": "recurrent layers",
    "experts": "routers, shared experts",
    "head": "output head",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Something that takes memory. `format`: how its numbers are stored; `place`: mapped (a file, on the CPU), host or
    device; `flag`: what makes it smaller, or "".
    """

    name: str
    format: str
    nbytes: int
    place: str
    flag: str = ""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes of everything that is allocated at start, and what it all weighs.

    `device`: "cpu" or a GPU's type. `ctx`: positions of a slot, at most `longest`. `headed`: the MTP head is used.
    `dtype`: of hidden rows. `pages`: KV pages in all. `places`: of the prefix cache. `sizes`: of the largest window.
    `downgrades`: (what, why) for what was asked for and does not fit.

    Pools, by the names of `strata_kernels.layout`: `kv`, `recurrent`, `buffers`, `sampler`; `drafts`: the distributions
    that `--accept rejection` keeps.
    """

    device: str
    ctx: int
    longest: int
    headed: bool
    dtype: str
    pages: int
    places: int
    sizes: WindowSizes
    weights: tuple[Part, ...]
    kv: Arrays
    recurrent: Arrays
    buffers: Arrays
    sampler: Arrays
    drafts: Arrays
    reserve: int = 0
    downgrades: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything, weights first; what takes nothing is left out."""
        where = HOST if self.device == "cpu" else DEVICE
        copies = {name: array for name, array in self.recurrent.items() if name.startswith("snap_")}
        state = {name: array for name, array in self.recurrent.items() if name not in copies}
        pools = (
            ("keys and values", self.kv, "--ctx, --batch, --kv-dtype"),
            ("recurrent state", state, "--batch"),
            ("prefix cache's states", copies, "--prefix-cache-mib"),
            ("window buffers", self.buffers, "--max-batched-tokens, --prefill-chunk"),
            ("sampler", self.sampler, "--batch"),
            ("draft distributions", self.drafts, "--accept coupled, --spec"),
        )
        found = [
            Part(name, max(arrays.values(), key=lambda a: a.nbytes).dtype, nbytes(arrays), where, flag)
            for name, arrays, flag in pools
            if arrays
        ]
        reserve = Part("reserve for activations and other programs", "", self.reserve, where, "--vram-reserve-mib")
        return tuple(part for part in (*self.weights, *found, reserve) if part.nbytes)

    @property
    def total_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def mapped_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts if part.place == MAPPED)

    @property
    def page_bytes(self) -> int:
        """Of one KV page in all layers."""
        return nbytes(self.kv) // self.pages if self.pages else 0

    def as_dict(self) -> dict[str, Any]:
        """For the header of the step statistics."""
        parts = [{"name": p.name, "format": p.format, "bytes": p.nbytes, "place": p.place} for p in self.parts]
        sizes = {"ctx": self.ctx, "pages": self.pages, "places": self.places}
        return {"total_bytes": self.total_bytes, "mapped_bytes": self.mapped_bytes, **sizes, "parts": parts}

    def lines(self) -> list[str]:
        """A line a part, and their sum."""
        total = Part("in all", "", self.total_bytes, f"{_mib(self.mapped_bytes)} mapped" if self.mapped_bytes else "")
        rows = [(p.name, p.format, _mib(p.nbytes), p.place) for p in (*self.parts, total)]
        name, kind, size = (max(len(row[i]) for row in rows) for i in range(3))
        return [f"{row[0]:<{name}}  {row[1]:<{kind}}  {row[2]:>{size}}  {row[3]}".rstrip() for row in rows]

    def refusal(self, why: str) -> StrataError:
        """Memory ran out while this was allocated: what takes how much of it, and what makes that smaller."""
        return StrataError(f"memory ran out while loading: {why}; {_largest(self.parts)}", _flags(self.parts))

    def fit(self, budget: int) -> int:
        """The largest context, in tokens, that every slot can fill within `budget` bytes, all else as it is.

        Raises StrataError with the largest parts when there is none.
        """
        slots = self.sizes.slots
        full = slots * slot_pages(self.ctx)
        spare = budget - self.total_bytes + full * self.page_bytes
        tokens = min(spare // (slots * self.page_bytes) * PAGE_TOKENS, self.longest)
        if tokens < PAGE_TOKENS:
            what = f"{_mib(budget)} do not hold the model with a context of {PAGE_TOKENS} tokens for {slots} slots"
            raise StrataError(f"{what}: {_largest(self.parts)}", _flags(self.parts))
        return tokens


def plan_memory(
    stored: StoredModel,
    model: ModelConfig,
    config: EngineConfig,
    *,
    device: str,
    tile: int,
    free: int | None = None,
    pages: int | None = None,
) -> MemoryPlan:
    """The plan for a model whose headers were read.

    Pages: a full context for every slot, the prefix cache's share, and page 0, which is nobody's. Where a GPU's memory
    does not hold them, the prefix cache shrinks first, then the number of slots that can fill their context.

    Args:
        device: a torch device's type. tile: windows are padded to multiples of so many rows.
        free: bytes there are on a GPU before anything is loaded; None: as much as it takes.
        pages: KV pages in all, instead of those.

    Raises StrataError when not even one slot can fill its context: parts, their sizes, and what makes them smaller.
    """
    ctx = config.context(model.max_position_embeddings)
    drafting = config.spec > 0 and config.drafter != "off" and config.batch_mtp is not False
    headed = drafting and stored.mtp is not None
    blocks = (*model.blocks, *(model.mtp.blocks if headed and model.mtp else ()))
    layers, linear = sum(block.kind == "attention" for block in blocks), model.count("gated_delta")
    attention = next(block.params for block in blocks if isinstance(block.params, AttentionParams))
    dtype = activation_dtype(config, device)
    kv_dtype = dtype if config.kv_dtype == "auto" else config.kv_dtype
    weights = tuple(weight_parts(stored, device))

    def plan(pages: int, places: int, *downgrades: tuple[str, str]) -> MemoryPlan:
        sizes = window_sizes(config, ctx, headed, places, tile)
        chains = (config.batch, config.spec, model.vocab_size)
        return MemoryPlan(
            device=device,
            ctx=ctx,
            longest=model.max_position_embeddings,
            headed=headed,
            dtype=dtype,
            pages=pages,
            places=places,
            sizes=sizes,
            weights=weights,
            kv=kv_pool(attention, layers, pages, kv_dtype),
            recurrent=recurrent_pool(model.recurrence, linear, config.batch, config.spec + 1, places),
            buffers=window_buffers(sizes, model.hidden_size, dtype, _touched(blocks)),
            sampler=sampler_pool(config.batch, model.vocab_size),
            drafts={"q": Array(chains)} if config.accept == "rejection" and config.spec else {},
            reserve=config.vram_reserve_mib * MIB if device != "cpu" else 0,
            downgrades=downgrades,
        )

    slot, full = slot_pages(ctx), config.batch * slot_pages(ctx) + 1
    page, bare = nbytes(kv_pool(attention, layers, 1, kv_dtype)), plan(0, 0).total_bytes
    place = plan(0, 1).total_bytes - bare
    budget = config.prefix_cache_mib * MIB if config.prefix_cache else 0
    shared, places = prefix_share(budget, page, place, full - 1)
    off = [("prefix cache off", f"{_mib(budget)} hold no entry")] if budget and not places else []
    asked = plan(pages or full + shared, places, *off)
    if free is None or asked.total_bytes <= free:
        return asked
    left = free - bare
    if left < (slot + 1) * page:
        what = f"{_mib(max(0, left))} are left for keys and values, a context of {ctx} tokens takes "
        raise StrataError(f"{what}{_mib((slot + 1) * page)}; {_largest(asked.parts)}", _flags(asked.parts))
    if left < full * page:
        why = f"{left // page} of {full + shared} fit: not all {config.batch} slots can fill their context"
        off = [("prefix cache off", "the GPU's memory holds no entry")] if places else []
        return plan(left // page, 0, ("KV pages", why), *off)
    shared, fitting = prefix_share(left - full * page, page, place, full - 1)
    return plan(full + shared, fitting, ("prefix cache", f"{fitting} of {places} places fit"))


def activation_dtype(config: EngineConfig, device: str) -> str:
    """The dtype of `--dtype`, of hidden rows; auto is float32 on the CPU, bfloat16 on a GPU."""
    if config.dtype == "auto":
        return "float32" if device == "cpu" else "bfloat16"
    return config.dtype


def slot_pages(ctx: int) -> int:
    """KV pages that hold a context."""
    return -(-ctx // PAGE_TOKENS)


def window_sizes(config: EngineConfig, ctx: int, headed: bool, places: int, tile: int) -> WindowSizes:
    """The largest window that these settings allow."""
    return WindowSizes(
        slots=config.batch,
        chain=config.spec,
        decode=min(config.row_budget, config.batch * (config.spec + 1)),
        prompt=max(config.max_batched_tokens, config.prefill_chunk),
        ring=RING_ROWS + config.spec + 1 if headed else 0,
        pages=table_pages(ctx),
        places=places,
        tile=tile,
    )


def prefix_share(budget: int, page: int, place: int, most: int) -> tuple[int, int]:
    """Pages (at most `most`) and places that `budget` bytes buy the prefix cache, at `page` and `place` bytes each.

    Pages first, for as many entries as the budget holds with the pages they add; places for what is left.
    """
    pages = min(ENTRY_PAGES * (budget // (place + ENTRY_PAGES * page)), most)
    return pages, min((budget - pages * page) // place, MOST_PLACES)


def weight_parts(stored: StoredModel, device: str) -> list[Part]:
    """Weights by what they are for and how they are stored; one that serves twice is counted once."""
    sums: Counter[tuple[str, str, str]] = Counter()
    seen: set[int] = set()
    tied = any(weight is stored.embedding for _, weight in stored.head.each())

    def count(name: str, weight: StoredWeight, vector: bool = False) -> None:
        if id(weight) in seen:
            return
        seen.add(id(weight))
        if vector:  # blocks read them as float32
            sums["norms and other vectors", "f32", HOST if device == "cpu" else DEVICE] += 4 * weight.size
            return
        for part in weight.parts.values():
            place = (MAPPED if part.aligned else HOST) if device == "cpu" else DEVICE
            sums[name, weight.label, place] += part.size_bytes

    def count_block(block: StoredBlock, name: str | None = None) -> None:
        wanted = block.block.tensors
        for role, weight in block.each():
            own = "routed experts" if isinstance(wanted[role], Bank) else KINDS.get(block.block.kind, "")
            count(name or own, weight, isinstance(wanted[role], Vector))

    count("embedding and output head" if tied else "embedding", stored.embedding)
    for block in (*stored.blocks, stored.head):
        count_block(block)
    for block in stored.mtp.all() if stored.mtp else ():
        count_block(block, "MTP head")
    return [Part(*key[:2], size, key[2]) for key, size in sums.items()]


def _touched(blocks: Sequence[Block]) -> tuple[int, int]:
    """Blocks with experts, and the most experts of one."""
    found = [block.params.experts for block in blocks if isinstance(block.params, ExpertsParams)]
    return len(found), max(found, default=0)


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB" if size >= 10 * MIB else f"{size / MIB:.1f} MiB"


def _largest(parts: Sequence[Part]) -> str:
    """The largest parts in words."""
    first = sorted(parts, key=lambda part: -part.nbytes)[:NAMED]
    return "largest: " + ", ".join(f"{' '.join(filter(None, (p.name, p.format)))} {_mib(p.nbytes)}" for p in first)


def _flags(parts: Sequence[Part]) -> str:
    """What makes the largest of those parts smaller that a flag decides."""
    first = sorted((part for part in parts if part.flag), key=lambda part: -part.nbytes)[:NAMED]
    return "; ".join(f"{part.flag} for {part.name}" for part in first)
