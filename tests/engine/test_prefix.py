"""A prefix-cache hit is a miss: every length of what is left, every place where an entry may end, any chunking."""

from functools import cache
from typing import Any

import pytest
import torch

from strata_cli.engine.drafters.mtp import MtpDrafter
from strata_cli.engine.types import Request
from tests.support.engine import Run, engine, prompt, request, run, tiny

SHAPE = "one-of-each"
STEM = prompt(64, seed=3)


def tail(n: int) -> Request:
    """64 tokens that are known, and n that are not; the sampled ones with penalties."""
    manner: dict[str, Any] = {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.3} if n % 2 else {}
    return request(str(n), STEM + prompt(n, seed=100 + n), max_tokens=7, seed=n, **manner)


@cache
def missed() -> Run:
    return run(engine(tiny(SHAPE), spec=0, prefix_cache=False), [tail(n) for n in range(1, 131)])


@pytest.mark.parametrize("settings", [{"mtp_varlen": False}, {"batch": 1, "prefill_chunk": 64}, {"spec": 0}], ids=str)
def test_every_tail(settings: dict[str, Any]) -> None:
    """1 token left to compute (there is always one) to 130; the entry's own prompt is of every length too."""
    e = engine(tiny(SHAPE), **settings)
    run(e, [request("first", [*STEM, 5], max_tokens=3)])
    found = run(e, [tail(n) for n in range(1, 131)])
    assert {r.cached_tokens for r in found.results.values()} == {64}
    assert sum(sum(r.prompt) for r in found.records) == sum(range(1, 131))
    assert found.tokens() == missed().tokens()
    assert found.bits() == missed().bits()


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 66, 127, 128, 129, 192, 193])
def test_the_same_prompt_again(length: int) -> None:
    """What is left is what follows the last multiple of 64 that leaves a token."""
    e = engine(tiny(SHAPE), mtp_varlen=False)
    first = run(e, [request("x", prompt(length), temperature=1.0)])
    again = run(e, [request("x", prompt(length), temperature=1.0)])
    assert again.results["x"].cached_tokens == (length - 1) // 64 * 64
    assert sum(sum(r.prompt) for r in again.records) == length - (length - 1) // 64 * 64
    assert (again.tokens(), again.bits(), again.drafting()) == (first.tokens(), first.bits(), first.drafting())


@pytest.mark.parametrize("shape", ["plain", "dense-attention"])
def test_the_slot_of_a_hit_holds_what_that_of_a_miss_does(shape: str) -> None:
    """Keys and values of every layer, the draft head's too (drafts would hardly tell), and the recurrent state."""

    def holds(warm: bool) -> tuple[Any, ...]:
        e = engine(tiny(shape), mtp_varlen=False)
        if warm:
            run(e, [request("first", [*STEM, 5], max_tokens=3)])
        e.submit(tail(70))
        for _ in range(2):
            e.step()
        slot, drafter = e.seats[0], e.drafters["mtp"]
        assert slot is not None and slot.life.cached_tokens == (64 if warm else 0)
        assert isinstance(drafter, MtpDrafter)
        n, pool = slot.length, e.kv.pool
        places = [e.kv.owned[0][i // 64] * 64 + i % 64 for i in range(1, n)]
        rows = [x.flatten(1, 2)[:, places] for x in (pool.k, pool.v)]
        seen = drafter.seen[0]  # what waits is not in the head yet
        waits = e.runner.buffers.hidden[[e.runner.buffers.ring(0, i) for i in range(seen, n)]]
        recurrent = e.runner.recurrent.pool
        held = [x[:, 0, : int(recurrent.pending[0, 0])] for x in (recurrent.k, recurrent.v, recurrent.beta)]
        state = recurrent.state[:, 0], recurrent.conv[:, 0], recurrent.pending[:, 0], *held
        return n, seen, rows[0][:-1], rows[1][:-1], rows[0][-1, :seen], rows[1][-1, :seen], waits, *state

    for hit, miss in zip(holds(True), holds(False), strict=True):
        assert torch.equal(torch.as_tensor(hit), torch.as_tensor(miss))


def test_places_of_a_long_prompt() -> None:
    """Entries end before the newest turn, at sparse places between, and at the end; another text leaves at each."""
    text = prompt(1300, seed=8)
    e = engine(tiny(SHAPE), mtp_varlen=False, prefill_chunk=200, max_batched_tokens=300, ctx=2048)
    long = request("long", text, max_tokens=3)
    run(e, [Request("long", text, long.params, None, 900)])
    for shared, known in ((1290, 1280), (1100, 1024), (950, 896), (890, 512), (511, 0)):
        other = [*text[:shared], (text[shared] + 1) % 131, *prompt(20, seed=shared)]
        hit = run(e, [request("x", other, temperature=0.7)])
        assert hit.results["x"].cached_tokens == known
        miss = run(engine(tiny(SHAPE), spec=0, prefix_cache=False, ctx=2048), [request("x", other, temperature=0.7)])
        assert (hit.tokens(), hit.bits()) == (miss.tokens(), miss.bits())


@pytest.mark.parametrize("chunk", [64, 65, 127, 128, 200, 320, 512])
@pytest.mark.parametrize("budget", [64, 100, 300, 1024])
def test_any_chunk_and_budget(chunk: int, budget: int) -> None:
    e = engine(tiny(SHAPE), mtp_varlen=False, prefill_chunk=chunk, max_batched_tokens=budget)
    found = run(e, chunked())
    assert all(sum(r.prompt) <= budget and max(r.prompt) <= chunk for r in found.records)
    assert (found.tokens(), found.bits()) == (whole(0).tokens(), whole(0).bits())
    assert found.drafting() == whole(4).drafting()  # the head has read every chunk


def chunked() -> list[Request]:
    return [request(str(n), prompt(n, seed=n), max_tokens=9, temperature=n % 2) for n in (300, 64, 129, 5, 210)]


@cache
def whole(spec: int) -> Run:
    return run(engine(tiny(SHAPE), batch=1, spec=spec, prefix_cache=False, mtp_varlen=False), chunked())


def test_an_entry_outlives_its_donor_and_its_readers() -> None:
    """Evicted while a hit still reads its pages: they stay until the last reader leaves."""
    e = engine(tiny(SHAPE), mtp_varlen=False)
    run(e, [request("first", [*STEM, 5], max_tokens=3)])

    def between(e: Any, window: int) -> None:
        if window == 2:
            while e.prefix.evict():
                pass
            e.submit(request("other", prompt(130, seed=77)))

    found = run(e, [tail(9)], between)
    assert found.results["9"].cached_tokens == 64
    assert found.tokens("9") == missed().tokens("9")
    assert found.bits("9") == missed().bits("9")


@pytest.mark.parametrize("places", [0, 1, 2, 5])
def test_places_run_out(places: int) -> None:
    """More places are wanted than there are, in one window and over many: texts and hits as ever, none is lost."""
    e = engine(tiny(SHAPE), mtp_varlen=False, prefill_chunk=512, max_batched_tokens=1024, ctx=2048)
    assert e.prefix is not None
    del e.prefix.free[places:]
    texts = [prompt(700 + 30 * i, seed=i) for i in range(6)]
    asked = [Request(str(i), t, request("x", t, max_tokens=3).params, None, 300 + i) for i, t in enumerate(texts)]
    found = run(e, asked)
    alone = run(engine(tiny(SHAPE), batch=1, spec=0, prefix_cache=False, ctx=2048), asked)
    assert (found.tokens(), found.bits()) == (alone.tokens(), alone.bits())
    assert len(e.prefix.free) + len(e.prefix.entries) == places
    run(e, asked[-1:])
    again = run(e, asked[-1:])  # read alone before, it is what was used last
    assert again.tokens() == alone.tokens("5")
    assert again.results["5"].cached_tokens == (832 if places else 0)


@pytest.mark.parametrize("kib", [300, 700, 1600])
def test_the_budget_holds_in_every_window(kib: int) -> None:
    """Also where several entries end in one window: four slots, and several places of each."""
    e = engine(tiny(SHAPE), mtp_varlen=False, prefill_chunk=512, max_batched_tokens=2048, ctx=2048)
    assert e.prefix is not None
    e.prefix.budget_bytes, most = kib * 1024, []
    texts = [prompt(700 + 30 * i, seed=i) for i in range(6)]

    def between(e: Any, window: int) -> None:
        most.append(e.prefix.nbytes)
        assert e.prefix.nbytes == sum(entry.nbytes for entry in e.prefix.entries.values())

    run(e, [Request(str(i), t, request("x", t, max_tokens=3).params, None, 300) for i, t in enumerate(texts)], between)
    assert 0 < max(most) <= kib * 1024


def test_pages_run_out_under_cached_prefixes() -> None:
    """Entries go before anybody waits, least recently used first; a slot that reads their pages goes on."""
    e = engine(tiny(SHAPE), mtp_varlen=False, pages=12, ctx=512, batch=2)
    assert e.prefix is not None
    old, hot = prompt(130, seed=1), prompt(130, seed=2)
    for text in (hot, old, hot):
        run(e, [request("x", text, max_tokens=3)])
    assert len(e.prefix.entries) == 2 and len(e.kv.pages.free) == 7
    found = run(e, [request("a", [*hot, 5, 6], max_tokens=40), request("b", prompt(400, seed=3), max_tokens=8)])
    assert found.results["a"].cached_tokens == 128
    assert max(found.started.values()) == 1
    alone = run(
        engine(tiny(SHAPE), spec=0, prefix_cache=False, ctx=512), [request("b", prompt(400, seed=3), max_tokens=8)]
    )
    assert found.tokens("b") == alone.tokens()
    again = run(e, [request("old", [*old, 5], max_tokens=3)])
    assert again.results["old"].cached_tokens == 0
