"""From a checkpoint on disk and settings to a running engine."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from strata_cli.config import EngineConfig
from strata_cli.engine.buffers import WindowBuffers, allocate
from strata_cli.engine.cache.kv import KVCache
from strata_cli.engine.cache.prefix import PrefixCache
from strata_cli.engine.cache.recurrent import RecurrentCache
from strata_cli.engine.drafters import Drafter
from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_cli.engine.drafters.ngram import NgramDrafter
from strata_cli.engine.drafters.vocab import DraftVocab, read_counts
from strata_cli.engine.engine import Engine, Parts
from strata_cli.engine.fuse import Downgrades, first_line, is_out_of_memory
from strata_cli.engine.planning import Planner
from strata_cli.engine.runner import Runner
from strata_cli.engine.sampling import SlotSampler
from strata_cli.errors import UsageError
from strata_cli.model.decoder import Binder, Decoder
from strata_cli.model.families import Block, ModelConfig
from strata_cli.model.memory import MemoryPlan, plan_memory
from strata_cli.model.mtp import MtpHead
from strata_cli.model.weights import ModelWeights
from strata_cli.model.weights.checkpoint import open_checkpoint
from strata_cli.model.weights.load import load_model
from strata_cli.model.weights.stored import StoredModel
from strata_cli.model.weights.values import first_bad_tensor
from strata_kernels import compiling
from strata_kernels.params import HeadParams
from strata_kernels.table import row_tile

MIB = 2**20
SMALL_PRODUCT = 2**18  # weights of a square matrix; at 192 x 192 two threads are half as fast as one when shared


def pick_device(name: str) -> torch.device:
    """The device of `--device`; auto takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here", "--device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


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
    """The weights of a checkpoint on a device, which several engines may share.

    taken: bytes of a GPU that they took. counts: of token ids, for the draft vocabulary.
    """

    model: ModelConfig
    weights: ModelWeights
    device: torch.device
    taken: int
    counts: dict[int, int]

    def engine(
        self, config: EngineConfig, eos: Sequence[int], vocab: int | None = None, pages: int | None = None
    ) -> Engine:
        """An engine with these settings around the weights.

        eos: token ids that end a request. vocab: real token ids (the tokenizer's), where the embedding is padded beyond
        them. pages: KV pages in all (None: as many as the memory plan finds).
        """
        free = free_bytes(self.device)  # less than before: another engine may be there already
        free = None if free is None else free + self.taken
        memory = _plan(self.weights.stored, self.model, config, self.device, free, pages)
        try:
            return _assemble(self, config, eos, min(vocab or self.model.vocab_size, self.model.vocab_size), memory)
        except (RuntimeError, MemoryError) as error:
            raise _too_large(error, memory) from error


def load(
    directory: Path, model: ModelConfig, config: EngineConfig, note: Callable[[str], None] = lambda text: None
) -> Loaded:
    """What `config` asks for of the checkpoint in `directory`: its device and grafted MTP head. `note` is told of what
    takes a while.

    Raises UsageError for what the checkpoint or the machine cannot honour, StrataError for a broken checkpoint or one
    that does not fit.
    """
    device = pick_device(config.device)
    if device.type == "cpu":
        settle_threads(model)
        if compiling.to_compile():
            note("compiling kernels for this processor, once for this version of strata")
    graft = open_checkpoint(Path(config.mtp)) if config.mtp else None
    stored = open_checkpoint(directory).find(model, graft)
    if config.batch_mtp and stored.mtp is None:
        what = f"{directory} has no MTP tensors, and --batch-mtp asks for them"
        raise UsageError(what, "drop --batch-mtp, or take a head from another checkpoint with --mtp PATH")
    free = free_bytes(device)
    memory = _plan(stored, model, config, device, free)
    counts = read_counts(directory)
    try:
        weights = load_model(stored, device)
        return Loaded(model, weights, device, (free or 0) - (free_bytes(device) or 0), counts)
    except (RuntimeError, MemoryError) as error:
        raise _too_large(error, memory) from error


def free_bytes(device: torch.device) -> int | None:
    """What a GPU has left, None on a CPU, whose memory is the system's to give."""
    return None if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])


def _plan(
    stored: StoredModel,
    model: ModelConfig,
    config: EngineConfig,
    device: torch.device,
    free: int | None,
    pages: int | None = None,
) -> MemoryPlan:
    return plan_memory(stored, model, config, device=device.type, tile=row_tile(device.type), free=free, pages=pages)


def _too_large(error: Exception, memory: MemoryPlan) -> Exception:
    """Out of memory as an error that says what takes it; any other error as it is."""
    return memory.refusal(first_line(error)) if is_out_of_memory(error) else error


def _assemble(loaded: Loaded, config: EngineConfig, eos: Sequence[int], vocab: int, memory: MemoryPlan) -> Engine:
    """Everything that the plan names, allocated, and the engine around it."""
    weights = loaded.weights
    downgrades = Downgrades()
    for warning in weights.warnings:
        downgrades.add("MTP head", warning)
    for what, why in memory.downgrades:
        downgrades.add(what, why)
    drafting = config.spec > 0 and config.drafter != "off" and config.batch_mtp is not False
    if drafting and not memory.headed and config.drafter == "mtp":
        config = replace(config, drafter="ngram")
        downgrades.add("MTP drafts off", "the checkpoint has no MTP tensors; drafts come from n-grams of the text")
    buffers = WindowBuffers(memory.sizes, memory.buffers, loaded.device)
    kv = KVCache(memory.kv, buffers.tables.host, loaded.device)
    recurrent = RecurrentCache(memory.recurrent, loaded.device)
    sampler = SlotSampler(memory.sampler, loaded.device)
    decoder, head, kernels = _bind(loaded, vocab, memory, kv, recurrent, buffers)
    q = allocate(memory.drafts, loaded.device).get("q")
    runner = Runner(decoder, head, buffers, recurrent, sampler, q)
    for what, why in _slow(kernels, loaded.device.type):
        downgrades.add(what, why)
    planner = Planner(
        spec=config.spec,
        rows=config.row_budget,
        plan=config.plan,
        fair=config.fair,
        varlen=config.mtp_varlen,
        batch=config.batch,
        bucket=memory.sizes.padded,
        min_p=config.spec_min_p,
        certain=config.accept == "rejection",
    )
    drafters: dict[str, Drafter] = {}
    if drafting:
        drafters["ngram"] = NgramDrafter(config.batch)
    if memory.headed:
        chosen = DraftVocab(config.draft_vocab, vocab, eos, loaded.counts) if config.draft_vocab else None
        drafters["mtp"] = MtpDrafter(runner, chosen)
    parts = Parts(
        runner=runner,
        kv=kv,
        planner=planner,
        drafters=drafters,
        prefix=PrefixCache(kv, recurrent, buffers, config.prefix_cache_mib * MIB) if memory.places else None,
        memory=memory,
        kernels=kernels,
        downgrades=downgrades,
        blame=lambda: _blame(weights),
    )
    return Engine(parts, config, memory.ctx, eos, vocab)


def _bind(
    loaded: Loaded,
    vocab: int,
    memory: MemoryPlan,
    kv: KVCache,
    recurrent: RecurrentCache,
    buffers: WindowBuffers,
) -> tuple[Decoder, MtpHead | None, Mapping[tuple[str, tuple[str, ...]], str]]:
    """The model's blocks, and its MTP head's, on their pools; and which sibling runs what."""
    model, weights, device = loaded.model, loaded.weights, loaded.device.type
    pools = {"attention": kv.pool, "gated_delta": recurrent.pool, "experts": buffers.touched}
    binder = Binder({**pools, "mtp_input": weights.embedding}, device)

    def real(head: Block) -> HeadParams:
        assert isinstance(head.params, HeadParams)
        return replace(head.params, real=vocab)

    blocks = binder.bind(model.blocks, weights.blocks)
    decoder = Decoder(blocks, weights, real(model.head), buffers.hidden.dtype, binder)
    if not memory.headed or model.mtp is None or weights.mtp is None:
        return decoder, None, binder.chosen
    joined = binder.one(model.mtp.input, weights.mtp.input)
    own = binder.bind(model.mtp.blocks, weights.mtp.blocks)
    return decoder, MtpHead(joined, own, weights.mtp.head, real(model.mtp.head), binder), binder.chosen


def _slow(kernels: Mapping[tuple[str, tuple[str, ...]], str], device: str) -> list[tuple[str, str]]:
    """Formats that this device reads the slow way, a tile of rows at a time, and why; and kernels that are not kept."""
    slow = [" ".join(read) for (what, read), sibling in kernels.items() if (what, sibling) == ("product", "reference")]
    found = []
    if device == "cpu" and slow:
        why = compiling.fault() or "no compiled routine reads them"
        found.append(("fast products off", f"weights in {', '.join(slow)} are unpacked a tile at a time: {why}"))
    elif device == "cpu" and compiling.cache_fault():
        found.append(("kernel cache off", f"compiled kernels are made anew at each start: {compiling.cache_fault()}"))
    return found


def _blame(weights: ModelWeights) -> str:
    """What of the model is not a number, in words; "" where every number of it is one."""
    bad = first_bad_tensor(weights)
    return f"({bad} holds such numbers)" if bad else ""
