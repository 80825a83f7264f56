"""From a checkpoint on disk and settings to a running engine."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from strata_cli.config import EngineConfig
from strata_cli.engine.buffers import WindowBuffers
from strata_cli.engine.cache.kv import KVCache
from strata_cli.engine.cache.prefix import PrefixCache
from strata_cli.engine.cache.recurrent import RecurrentCache
from strata_cli.engine.drafters import Drafter
from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_cli.engine.drafters.ngram import NgramDrafter
from strata_cli.engine.drafters.vocab import DraftVocab, read_counts
from strata_cli.engine.engine import Engine, Parts
from strata_cli.engine.fuse import Downgrades
from strata_cli.engine.planning import Planner
from strata_cli.engine.runner import Runner
from strata_cli.engine.sampling import SlotSampler
from strata_cli.errors import UsageError
from strata_cli.model.decoder import Binder, Decoder
from strata_cli.model.families import ModelConfig
from strata_cli.model.memory import MemoryPlan
from strata_cli.model.mtp import MtpHead
from strata_cli.model.weights import ModelWeights
from strata_cli.model.weights.checkpoint import open_checkpoint
from strata_cli.model.weights.values import first_bad_tensor
from strata_kernels.layout import WindowSizes, kv_pool, nbytes, recurrent_pool, snapshot_bytes, table_pages
from strata_kernels.params import ExpertsParams, HeadParams
from strata_kernels.table import row_tile

MIB = 2**20
SMALL_PRODUCT = 2**18  # weights of a square matrix; at 192 x 192 two threads are half as fast as one when shared
RING_ROWS = 32  # hidden rows of a slot that may wait for the MTP head beside those of a window


def pick_device(name: str) -> torch.device:
    """The device of `--device`; auto takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here", "--device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def pick_dtype(name: str, device: torch.device) -> str:
    """The dtype of `--dtype`, of hidden rows; auto is float32 on the CPU, bfloat16 on a GPU."""
    if name == "auto":
        return "float32" if device.type == "cpu" else "bfloat16"
    return name


def settle_threads(model: ModelConfig) -> None:
    """One thread for a small model, whose products are over before a second one wakes; else a power of two, because an
    uneven split of element-wise work rounds some rows differently.
    """
    if model.hidden_size * model.hidden_size < SMALL_PRODUCT:
        torch.set_num_threads(1)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(torch.get_num_threads(), cores)
    torch.set_num_threads(1 << (threads.bit_length() - 1))


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights of a checkpoint on a device, which several engines may share. counts: of token ids, for the draft
    vocabulary.
    """

    model: ModelConfig
    weights: ModelWeights
    device: torch.device
    counts: dict[int, int]

    def engine(
        self, config: EngineConfig, eos: Sequence[int], vocab: int | None = None, pages: int | None = None
    ) -> Engine:
        """An engine with these settings around the weights.

        eos: token ids that end a request. vocab: real token ids (the tokenizer's), where the embedding is padded beyond
        them. pages: KV pages in all (None: as the memory plan has it).
        """
        return assemble(self, config, eos, min(vocab or self.model.vocab_size, self.model.vocab_size), pages)


def load(directory: Path, model: ModelConfig, config: EngineConfig) -> Loaded:
    """What `config` asks for of the checkpoint in `directory`: its device and grafted MTP head.

    Raises UsageError for what the checkpoint or the machine cannot honour, StrataError for a broken checkpoint.
    """
    device = pick_device(config.device)
    if device.type == "cpu":
        settle_threads(model)
    checkpoint = open_checkpoint(directory)
    graft = open_checkpoint(Path(config.mtp)) if config.mtp else None
    weights = checkpoint.load(model, device, graft)
    if config.batch_mtp and weights.mtp is None:
        what = f"{directory} has no MTP tensors, and --batch-mtp asks for them"
        raise UsageError(what, "drop --batch-mtp, or take a head from another checkpoint with --mtp PATH")
    return Loaded(model, weights, device, read_counts(directory))


def assemble(loaded: Loaded, config: EngineConfig, eos: Sequence[int], vocab: int, pages: int | None) -> Engine:
    """See `Loaded.engine`."""
    model, weights, device = loaded.model, loaded.weights, loaded.device
    ctx = config.context(model.max_position_embeddings)
    downgrades = Downgrades()
    for warning in weights.warnings:
        downgrades.add("MTP head", warning)
    drafting = config.spec > 0 and config.drafter != "off" and config.batch_mtp is not False
    headed = drafting and weights.mtp is not None
    if drafting and not headed and config.drafter == "mtp":
        config = replace(config, drafter="ngram")
        downgrades.add("MTP drafts off", "the checkpoint has no MTP tensors; drafts come from n-grams of the text")
    dtype = pick_dtype(config.dtype, device)
    memory = stub_plan(model, config, ctx, headed, dtype, pages)
    runner, kv, sizes = _runner(loaded, config, ctx, vocab, headed, dtype, memory)
    planner = Planner(
        spec=config.spec,
        rows=config.row_budget,
        plan=config.plan,
        fair=config.fair,
        varlen=config.mtp_varlen,
        batch=config.batch,
        bucket=sizes.padded,
        min_p=config.spec_min_p,
        certain=config.accept == "rejection",
    )
    parts = Parts(
        runner=runner,
        kv=kv,
        planner=planner,
        drafters=_drafters(runner, config, vocab, eos, loaded.counts, headed) if drafting else {},
        prefix=_prefix(kv, runner, config, memory, model, dtype) if config.prefix_cache else None,
        memory=memory,
        downgrades=downgrades,
        blame=lambda: _blame(weights),
    )
    return Engine(parts, config, ctx, eos, vocab)


def _runner(
    loaded: Loaded, config: EngineConfig, ctx: int, vocab: int, headed: bool, dtype: str, memory: MemoryPlan
) -> tuple[Runner, KVCache, WindowSizes]:
    """Pools and buffers as the memory plan has them, and the model bound to them."""
    model, weights, device = loaded.model, loaded.weights, loaded.device
    sizes = WindowSizes(
        slots=config.batch,
        chain=config.spec,
        decode=min(config.row_budget, config.batch * (config.spec + 1)),
        prompt=max(config.max_batched_tokens, config.prefill_chunk),
        ring=RING_ROWS + config.spec + 1 if headed else 0,
        pages=table_pages(ctx),
        places=memory.places,
        tile=row_tile(device.type),
    )
    mtp = model.mtp if headed else None
    blocks = [*model.blocks, *(mtp.blocks if mtp else ())]
    experts = [b.params for b in blocks if isinstance(b.params, ExpertsParams)]
    touched = len(experts), max((p.experts for p in experts), default=0)
    buffers = WindowBuffers(sizes, model.hidden_size, dtype, touched, device)
    layers = sum(b.kind == "attention" for b in blocks)
    assert model.attention is not None, "every family has attention layers"
    kv_dtype = dtype if config.kv_dtype == "auto" else config.kv_dtype
    kv = KVCache(kv_pool(model.attention, layers, memory.pages, kv_dtype), buffers.tables.host, device)
    recurrent = RecurrentCache(
        recurrent_pool(model.recurrence, model.count("gated_delta"), config.batch, config.spec + 1, memory.places),
        device,
    )
    sampler = SlotSampler(config.batch, model.vocab_size, device)
    pools = {"attention": kv.pool, "gated_delta": recurrent.pool, "experts": buffers.touched}
    binder = Binder({**pools, "mtp_input": weights.embedding}, device.type)
    params = model.head.params
    assert isinstance(params, HeadParams)
    params = replace(params, real=vocab)
    decoder = Decoder(binder.bind(model.blocks, weights.blocks), weights, params, buffers.hidden.dtype, device.type)
    head = None
    if mtp is not None and weights.mtp is not None:
        own = mtp.head.params
        assert isinstance(own, HeadParams)
        joined = binder.one(mtp.input, weights.mtp.input)
        bound = binder.bind(mtp.blocks, weights.mtp.blocks)
        head = MtpHead(joined, bound, weights.mtp.head, replace(own, real=vocab), device.type)
    return Runner(decoder, head, buffers, recurrent, sampler, config.accept == "rejection"), kv, sizes


def _drafters(
    runner: Runner, config: EngineConfig, vocab: int, eos: Sequence[int], counts: dict[int, int], headed: bool
) -> dict[str, Drafter]:
    drafters: dict[str, Drafter] = {"ngram": NgramDrafter(config.batch)}
    if headed:
        chosen = DraftVocab(config.draft_vocab, vocab, eos, counts) if config.draft_vocab else None
        drafters["mtp"] = MtpDrafter(runner, config.accept == "rejection", chosen)
    return drafters


def _prefix(
    kv: KVCache, runner: Runner, config: EngineConfig, memory: MemoryPlan, model: ModelConfig, dtype: str
) -> PrefixCache:
    hidden = runner.buffers.hidden.element_size() * model.hidden_size
    entry = snapshot_bytes(model.recurrence, model.count("gated_delta")) + hidden
    return PrefixCache(kv, runner.recurrent, memory.places, entry, config.prefix_cache_mib * MIB)


def _blame(weights: ModelWeights) -> str:
    """What of the model is not a number, in words; "" where every number of it is one."""
    bad = first_bad_tensor(weights)
    return f"({bad} holds such numbers)" if bad else ""


def stub_plan(model, config, ctx, headed, dtype, pages):
    per = -(-ctx // 64)
    layers = model.count("attention") + headed
    pb = nbytes(kv_pool(model.attention, layers, 1, dtype))
    cached = config.prefix_cache_mib * MIB // max(1, pb) if config.prefix_cache else 0
    wanted = config.batch * per + min(cached, config.batch * per) + 1
    places = 64 if config.prefix_cache else 0
    return MemoryPlan(pages or wanted, places)
