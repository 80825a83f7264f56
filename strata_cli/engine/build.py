"""From a checkpoint on disk and settings to a running engine."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from strata_cli.config import EngineConfig
from strata_cli.engine.cache import SlotCache
from strata_cli.engine.cache.pages import PAGE_TOKENS
from strata_cli.engine.cache.prefix import PrefixCache
from strata_cli.engine.drafters import Drafter
from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_cli.engine.engine import Engine
from strata_cli.engine.planner import Planner
from strata_cli.engine.runner import Runner
from strata_cli.errors import UsageError
from strata_cli.model.config import ModelConfig
from strata_cli.model.decoder import Decoder
from strata_cli.model.layers import Weights
from strata_cli.model.mtp import MtpHead
from strata_cli.model.weights.safetensors import open_checkpoint
from strata_kernels.linear import padded_rows

DEFAULT_CTX = 8192
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


def settle_threads() -> None:
    """A power of two threads: element-wise work is split evenly, and an uneven split rounds some rows differently."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(torch.get_num_threads(), cores)
    torch.set_num_threads(1 << (threads.bit_length() - 1))


def build_engine(
    directory: Path, model: ModelConfig, config: EngineConfig, eos: Sequence[int], vocab: int | None = None
) -> Engine:
    """Load the checkpoint in `directory` and put an engine around it.

    eos: token ids that end a request. vocab: real token ids (the tokenizer's), where the embedding is padded beyond
    them.
    Raises UsageError for settings that the checkpoint or the machine cannot honour, StrataError for a broken
    checkpoint.
    """
    settle_threads()
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    checkpoint = open_checkpoint(directory)
    found = checkpoint.check(model)
    graft = open_checkpoint(Path(config.mtp)) if config.mtp else None
    if config.batch_mtp and not found.has_mtp and graft is None:
        raise UsageError(
            f"{directory} has no MTP tensors, and --batch-mtp asks for them", "drop --batch-mtp, or --mtp PATH"
        )
    weights = checkpoint.load(model, dtype, device)
    mtp = weights.mtp if graft is None else graft.load_mtp(model, dtype, device)
    return assemble(weights.main, mtp, model, config, eos, device, dtype, vocab)


def assemble(
    main: Weights,
    mtp: Weights | None,
    model: ModelConfig,
    config: EngineConfig,
    eos: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    vocab: int | None = None,
    pages: int | None = None,
) -> Engine:
    """An engine around loaded weights. pages: KV pages in all (None: every slot can fill its context, and the prefix
    cache its
    budget)."""
    ctx = min(model.max_position_embeddings, config.ctx or DEFAULT_CTX)
    if config.ctx is not None and config.ctx > model.max_position_embeddings:
        what = f"--ctx {config.ctx} is more than the model's {model.max_position_embeddings} positions"
        raise UsageError(what, f"--ctx {model.max_position_embeddings} or less")
    if mtp is None or config.spec == 0 or config.batch_mtp is False:
        mtp = None
    decoder = Decoder(main, model, min(vocab or model.vocab_size, model.vocab_size))
    head = MtpHead(mtp, model, decoder.embedding) if mtp is not None else None
    kv_dtype = dtype if config.kv_dtype == "auto" else DTYPES[config.kv_dtype]
    per_slot = -(-ctx // PAGE_TOKENS)
    cached = per_slot if config.prefix_cache else 0
    cache = SlotCache(
        model,
        slots=config.batch,
        rows=config.spec + 1,
        pages=pages or config.batch * per_slot + cached + 1,
        ctx=ctx,
        mtp=head is not None,
        dtype=kv_dtype,
        device=device,
    )
    runner = Runner(decoder, head, cache, device)
    drafters: dict[str, Drafter] = {}
    if head is not None:
        drafters["mtp"] = MtpDrafter(runner, config.batch, config.accept == "rejection")
    planner = Planner(
        spec=config.spec,
        rows=config.row_budget,
        plan=config.plan,
        fair=config.fair,
        varlen=config.mtp_varlen,
        batch=config.batch,
        bucket=padded_rows,
    )
    prefix = PrefixCache(cache, config.prefix_cache_mib * 2**20) if config.prefix_cache else None
    return Engine(runner, drafters, planner, config, ctx, eos, prefix)
