"""From a checkpoint on disk and settings to a running engine."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from strata_cli.config import EngineConfig
from strata_cli.engine.cache.pages import PAGE_TOKENS
from strata_cli.engine.cache.prefix import PrefixCache
from strata_cli.engine.cache.slots import SlotCache
from strata_cli.engine.drafters import Drafter
from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_cli.engine.drafters.ngram import NgramDrafter
from strata_cli.engine.drafters.vocab import DraftVocab, read_counts
from strata_cli.engine.engine import Engine
from strata_cli.engine.fuse import Downgrades
from strata_cli.engine.planner import Planner
from strata_cli.engine.runner import Runner
from strata_cli.errors import StrataError, UsageError
from strata_cli.model.config import ModelConfig
from strata_cli.model.decoder import Decoder
from strata_cli.model.mtp import MtpHead
from strata_cli.model.weights import Weights
from strata_cli.model.weights.safetensors import open_checkpoint
from strata_kernels.linear import padded_rows

MIB = 2**20
SMALL_PRODUCT = (
    2**18
)  # weights of a square matrix; measured at 192 x 192: two threads are half as fast as one when shared
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str) -> torch.device:
    """The device of `--device`; auto takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here", "--device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of `--dtype`; auto is float32 on the CPU, bfloat16 on a GPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return DTYPES[name]


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


def load_weights(directory: Path, model: ModelConfig, config: EngineConfig) -> tuple[Weights, torch.device]:
    """What `config` asks for of the checkpoint in `directory`: its device, dtype and grafted MTP head.

    Raises UsageError for what the checkpoint or the machine cannot honour, StrataError for a broken checkpoint.
    """
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    if device.type == "cpu":
        settle_threads(model)
    checkpoint = open_checkpoint(directory)
    graft = open_checkpoint(Path(config.mtp)) if config.mtp else None
    found = checkpoint.check(model, graft)
    if config.batch_mtp and not found.has_mtp:
        what = f"{directory} has no MTP tensors, and --batch-mtp asks for them"
        raise UsageError(what, "drop --batch-mtp, or take a head from another checkpoint with --mtp PATH")
    return checkpoint.load(model, dtype, device, graft), device


def build_engine(
    directory: Path, model: ModelConfig, config: EngineConfig, eos: Sequence[int], vocab: int | None = None
) -> Engine:
    """Load the checkpoint in `directory` and put an engine around it.

    eos: token ids that end a request. vocab: real token ids (the tokenizer's), where the embedding is padded beyond
    them. Raises as `load_weights` does.
    """
    weights, device = load_weights(directory, model, config)
    return assemble(weights, model, config, eos, device, vocab=vocab, counts=read_counts(directory))


def assemble(
    weights: Weights,
    model: ModelConfig,
    config: EngineConfig,
    eos: Sequence[int],
    device: torch.device,
    *,
    vocab: int | None = None,
    pages: int | None = None,
    counts: dict[int, int] | None = None,
) -> Engine:
    """An engine around loaded weights, which several engines may share.

    pages: KV pages in all (None: every slot can fill its context, and the prefix cache has its own). counts: of token
    ids, for the draft vocabulary.
    """
    ctx = config.context(model.max_position_embeddings)
    vocab = min(vocab or model.vocab_size, model.vocab_size)
    downgrades = Downgrades()
    for warning in weights.warnings:
        downgrades.add("MTP head", warning)
    drafting = config.spec > 0 and config.drafter != "off" and config.batch_mtp is not False
    headed = drafting and weights.mtp is not None
    decoder = Decoder(weights.main, model, vocab)
    head = MtpHead(weights.mtp, model, decoder.embedding) if headed and weights.mtp is not None else None
    dtype = decoder.embedding.dtype if config.kv_dtype == "auto" else DTYPES[config.kv_dtype]
    if pages is None:
        pages = plan_pages(model, config, ctx, headed, dtype, device, downgrades)
    cache = SlotCache(
        model, slots=config.batch, rows=config.spec + 1, pages=pages, ctx=ctx, mtp=headed, dtype=dtype, device=device
    )
    runner = Runner(decoder, head, cache, device)
    drafters: dict[str, Drafter] = {}
    if drafting:
        drafters["ngram"] = NgramDrafter(config.batch)
    if headed:
        chosen = DraftVocab(config.draft_vocab, vocab, eos, counts) if config.draft_vocab else None
        drafters["mtp"] = MtpDrafter(runner, config.batch, config.accept == "rejection", chosen)
    elif drafting and config.drafter == "mtp":
        config = replace(config, drafter="ngram")
        downgrades.add("MTP drafts off", "the checkpoint has no MTP tensors; drafts come from n-grams of the text")
    planner = Planner(
        spec=config.spec,
        rows=config.row_budget,
        plan=config.plan,
        fair=config.fair,
        varlen=config.mtp_varlen,
        batch=config.batch,
        bucket=padded_rows,
        min_p=config.spec_min_p,
        certain=config.accept == "rejection",
    )
    prefix = PrefixCache(cache, config.prefix_cache_mib * MIB) if config.prefix_cache else None
    engine = Engine(runner, drafters, planner, config, ctx, eos, prefix, downgrades)
    parts = [*weights.main.values(), *(weights.mtp or {}).values(), cache.kv.k, cache.kv.v]
    engine.planned_bytes = sum(t.nbytes for t in parts) + config.batch * cache.recurrent.bytes_per_slot
    return engine


def plan_pages(
    model: ModelConfig,
    config: EngineConfig,
    ctx: int,
    mtp: bool,
    dtype: torch.dtype,
    device: torch.device,
    downgrades: Downgrades,
) -> int:
    """KV pages in all: a full context for every slot and the prefix cache's share, as far as the GPU's memory goes."""
    layers = model.layer_types.count("full_attention") + mtp
    page_bytes = 2 * layers * PAGE_TOKENS * model.num_key_value_heads * model.head_dim * dtype.itemsize
    slot_pages = -(-ctx // PAGE_TOKENS)
    cached = config.prefix_cache_mib * MIB // max(1, page_bytes) if config.prefix_cache else 0
    wanted = config.batch * slot_pages + min(cached, config.batch * slot_pages) + 1
    if device.type != "cuda":
        return wanted
    free = torch.cuda.mem_get_info(device)[0] - config.vram_reserve_mib * MIB
    fitting = max(0, free // page_bytes)
    if fitting < slot_pages + 1:
        what = f"{free / MIB:.0f} MiB are left for keys and values, a context of {ctx} tokens takes "
        raise StrataError(what + f"{(slot_pages + 1) * page_bytes / MIB:.0f}", "lower --ctx or --vram-reserve-mib")
    if fitting < config.batch * slot_pages + 1:
        downgrades.add("KV pages", f"{fitting} of {wanted} fit: not all {config.batch} slots can fill their context")
    return min(wanted, fitting)
