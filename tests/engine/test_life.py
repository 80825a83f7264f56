"""A request's life: how it ends, what is refused, who waits, what is counted."""

import itertools
from typing import Any

import pytest
import torch

from strata_cli.config import SamplingParams
from strata_cli.engine.engine import Engine
from strata_cli.engine.types import Finished, Request, Started, Tokens
from strata_cli.errors import UsageError
from strata_kernels.head.pool import Draws
from tests.support.engine import engine, prompt, request, run, set_clock, tiny


def plain(tokens: list[int], **params: Any) -> list[int]:
    return run(engine(tiny(), batch=1, spec=0), [request("0", tokens, **params)]).tokens()[0]


class Ends:
    """Stops at the n-th token; the engine's view of a stop string."""

    def __init__(self, n: int):
        self.n, self.seen = n, []

    def push(self, token: int) -> bool:
        self.seen.append(token)
        return len(self.seen) == self.n


@pytest.mark.parametrize("n", range(1, 14))
def test_a_stop_inside_a_window_censors_what_is_behind_it(n: int) -> None:
    tokens, watch = prompt(12), Ends(n)
    ended = Request("0", tokens, SamplingParams(temperature=0.0, max_tokens=24), watch)
    found = run(engine(tiny(agree=1.0), mtp_varlen=False), [ended, request("1", prompt(5))])
    result = found.results["0"]
    assert result.finish_reason == "stop"
    assert (
        result.token_ids == watch.seen == run(engine(tiny(agree=1.0), spec=0), [request("0", tokens)]).tokens()[0][:n]
    )
    last = [r for r in found.records if "0" in r.request][-1]
    place = last.request.index("0")
    assert last.drafted_by[place] <= last.keeps[place]
    spec = result.spec
    assert spec.keeps == n - 1  # the first token came from the prompt's last row
    assert sum(spec.verified_at) == spec.verified
    assert sum(spec.accepted_at) == spec.accepted


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 6, 7, 11])
def test_max_tokens_inside_a_window(max_tokens: int) -> None:
    found = run(engine(tiny(agree=1.0), mtp_varlen=False), [request("0", prompt(12), max_tokens=max_tokens)])
    assert found.results["0"].finish_reason == "length"
    assert len(found.results["0"].token_ids) == max_tokens
    assert all(sum(r.L) <= max_tokens for r in found.records)


def test_stop_ids_and_ignore_eos() -> None:
    text = plain(prompt(12))
    eos = text[7]
    first = text.index(eos)
    e = engine(tiny(), eos=(eos,), mtp_varlen=False)
    ends = run(e, [request("0", prompt(12)), request("1", prompt(12), ignore_eos=True)])
    assert ends.results["0"].token_ids == text[: first + 1]
    assert ends.results["0"].finish_reason == "stop"
    assert ends.results["1"].token_ids == text
    own = run(engine(tiny()), [request("0", prompt(12), stop_token_ids=(eos,))])
    assert own.results["0"].token_ids == text[: first + 1]


def test_the_context_is_a_limit() -> None:
    found = run(engine(tiny(), ctx=64, mtp_varlen=False), [request("0", prompt(50), max_tokens=500)])
    assert found.results["0"].finish_reason == "length"
    assert len(found.results["0"].token_ids) == 14
    with pytest.raises(UsageError, match="64 tokens, the context 64"):
        engine(tiny(), ctx=64).submit(request("1", prompt(64)))


def test_what_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(UsageError, match="spec 5 is above"):
        engine(tiny(), spec=4).submit(request("0", prompt(3), spec=5))
    e = engine(tiny())
    del e.drafters["mtp"]  # as where the checkpoint has no head
    with pytest.raises(UsageError, match="no drafter 'mtp'"):
        e.submit(request("0", prompt(3), drafter="mtp"))


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(UsageError, match="token id 999"):
        engine(tiny()).submit(request("0", [5, 999]))
    with pytest.raises(UsageError, match="token id 320"):
        engine(tiny()).submit(request("0", [5], logit_bias=((7, 1.0), (320, 1.0))))


def test_a_request_fails_alone() -> None:
    class Breaks:
        def push(self, token: int) -> bool:
            raise ValueError("no such token")

    broken = Request("1", prompt(9), SamplingParams(temperature=0.0, max_tokens=24), Breaks())
    found = run(engine(tiny(), mtp_varlen=False), [request("0", prompt(12)), broken, request("2", prompt(20))])
    assert found.results["1"].finish_reason == "error"
    assert "no such token" in str(found.results["1"].error)
    assert found.tokens("0", "2") == [plain(prompt(12)), plain(prompt(20))]


def test_numbers_that_are_none_fail_their_request_alone() -> None:
    e = engine(tiny(), mtp_varlen=False)
    draw = e.runner.model.draw

    def poisoned(x: torch.Tensor, draws: Draws, pool: Any) -> Any:
        seats = [s for s in e.seats if s is not None]
        if len(seats) == 2 and len(seats[0].life.tokens) > 20:
            x[draws.rows[0]] = float("nan")
        return draw(x, draws, pool)

    e.runner.model.draw = poisoned  # type: ignore[method-assign]
    found = run(e, [request("0", prompt(12)), request("1", prompt(20)), request("2", prompt(30))])
    assert found.results["0"].finish_reason == "error"
    assert "not a number" in str(found.results["0"].error)
    assert found.results["0"].token_ids == plain(prompt(12))[: len(found.results["0"].token_ids)]
    assert found.tokens("1", "2") == [plain(prompt(20)), plain(prompt(30))]


@pytest.mark.parametrize("manner", [{}, {"mtp_varlen": False}, {"accept": "rejection"}, {"spec_min_p": 0.2}])
def test_a_draft_head_whose_numbers_are_none_makes_bad_drafts_and_nothing_else(manner: dict[str, Any]) -> None:
    """As a head that overflows in float16: greedy text is what it is without drafts, in every way to draft."""
    e = engine(tiny(), **manner)
    assert e.runner.head is not None
    head = e.runner.head._head
    calls = 0

    def poisoned(x: torch.Tensor, draws: Draws, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3:
            x[draws.rows[draws.count - 1]] = float("nan")
        return head(x, draws, *args)

    e.runner.head._head = poisoned
    found = run(e, [request("0", prompt(12), max_tokens=90), request("1", prompt(20), max_tokens=90)])
    assert found.tokens("0", "1") == [plain(prompt(12), max_tokens=90), plain(prompt(20), max_tokens=90)]
    assert calls > 3


@pytest.mark.parametrize("off", [{"spec": 0}, {"drafter": "off"}, {"batch_mtp": False}])
def test_a_request_s_drafter_is_nothing_where_drafts_are_off(off: dict[str, Any]) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=24, drafter=name) for name in ("mtp", "ngram", "off")]
    e = engine(tiny(), **off)
    found = run(e, [Request(str(i), prompt(12), p) for i, p in enumerate(params)])
    assert found.tokens() == [plain(prompt(12))] * 3
    assert {reason for r in found.records for reason in r.reason} == {"prefill", "nodraft"}


def test_a_failed_request_leaves_nothing_in_its_pages() -> None:
    """Pages and states full of what is not a number, given back, then taken by another request."""
    e = engine(tiny(), batch=1, mtp_varlen=False, prefix_cache=False)
    e.kv.pool.k[:, 1:] = e.kv.pool.v[:, 1:] = float("nan")  # page 0 belongs to nobody
    found = run(e, [request(str(i), prompt(12 + 60 * i, seed=i)) for i in range(2)])
    assert [r.error for r in found.results.values()] == [None, None]
    assert found.tokens() == [plain(prompt(12)), plain(prompt(72, seed=1))]


@pytest.mark.parametrize("policy", ["mixed", "immediate", "gather"])
def test_who_does_not_fit_waits_and_starts_once(policy: str) -> None:
    """Four pages: the first request takes three and a fourth; the second one waits for two of them."""
    e = engine(tiny(), pages=5, ctx=256, batch=2, mtp_varlen=False, prefill_policy=policy, gather_ms=0.0)
    first, second = request("0", prompt(150), max_tokens=60), request("1", prompt(100, seed=3), max_tokens=8)
    found = run(e, [first, second])
    assert found.started == {"0": 1, "1": 1}
    assert sum(r.prefix_hits + r.prefix_misses for r in found.records) == 2
    assert found.tokens() == [plain(prompt(150), max_tokens=60), plain(prompt(100, seed=3), max_tokens=8)]


def test_cancel_waiting_and_running() -> None:
    e = engine(tiny(), batch=1, mtp_varlen=False)
    for i in range(3):
        e.submit(request(str(i), prompt(9 + i)))
    assert e.cancel("2")
    assert not e.cancel("nobody")
    found = run(e, [])
    assert found.results["2"].finish_reason == "cancelled"
    assert found.results["2"].token_ids == []
    assert found.tokens("0", "1") == [plain(prompt(9)), plain(prompt(10))]
    assert found.results["2"].timings.ttft_ms == 0


def test_seeds_are_drawn_and_recorded() -> None:
    drawn = run(engine(tiny()), [request("0", prompt(9), temperature=1.0, seed=None)]).results["0"]
    again = run(engine(tiny()), [request("0", prompt(9), temperature=1.0, seed=drawn.seed)]).results["0"]
    other = run(engine(tiny()), [request("0", prompt(9), temperature=1.0, seed=drawn.seed ^ 1)]).results["0"]
    assert drawn.token_ids == again.token_ids
    assert drawn.token_ids != other.token_ids


def test_a_long_prompt_stalls_nobody_beyond_a_chunk() -> None:
    """While 600 tokens are read in chunks of 64, the others decode in every window."""
    e = engine(tiny(), prefill_chunk=64, max_batched_tokens=64, mtp_varlen=False)

    def between(e: Engine, window: int) -> None:
        if window == 3:
            e.submit(request("long", prompt(600)))

    found = run(e, [request(str(i), prompt(6 + i), max_tokens=120) for i in range(2)], between)
    reading = [r for r in found.records if "long" in r.request and r.prompt[r.request.index("long")]]
    assert len(reading) == 10
    for record in reading:
        assert record.kind == "mixed"
        assert all(k >= 1 for i, k in zip(record.request, record.keeps) if i != "long")


def test_a_short_prompt_passes_a_long_one_twice_at_most() -> None:
    e = engine(tiny(), prefill_chunk=64, max_batched_tokens=64, spec=0)

    def between(e: Engine, window: int) -> None:
        if window == 1:
            for i in range(3):
                e.submit(request(f"short-{i}", prompt(64, seed=i), max_tokens=60))

    found = run(e, [request("long", prompt(800))], between)
    order = [i for r in found.records for i, n in zip(r.request, r.prompt) if n]
    shorts = [k for k, i in enumerate(order) if i.startswith("short")]
    assert shorts[:2] == [1, 2]
    assert shorts[2] == 3 + order[3:].count("long")  # the third one waits until the long prompt is read


@pytest.mark.parametrize("policy", ["mixed", "immediate"])
def test_immediate_takes_whole_windows(policy: str) -> None:
    e = engine(tiny(), prefill_policy=policy, mtp_varlen=False)

    def between(e: Engine, window: int) -> None:
        if window == 3:
            e.submit(request("late", prompt(40)))

    found = run(e, [request("0", prompt(6), max_tokens=60)], between)
    kinds = [r.kind for r in found.records if "late" in r.request and sum(r.prompt)]
    assert kinds == (["mixed"] if policy == "mixed" else ["prefill"])


def test_gather_waits_for_company_but_not_for_ever() -> None:
    now = [0.0]
    e = engine(tiny(), prefill_policy="gather", gather_ms=50.0, spec=0)
    set_clock(e, lambda: now[0])
    e.submit(request("0", prompt(6)))
    assert not any(isinstance(x, Started) for x in e.step())
    for i in range(1, 4):
        e.submit(request(str(i), prompt(6)))
    assert sum(isinstance(x, Started) for x in e.step()) == 4  # all seats can be filled
    while e.has_work:
        e.step()
    e.submit(request("5", prompt(6)))
    now[0] += 0.049
    assert not any(isinstance(x, Started) for x in e.step())
    now[0] += 0.002
    assert any(isinstance(x, Started) for x in e.step())


def test_groups_take_turns() -> None:
    found = run(engine(tiny(), batch_groups=2, mtp_varlen=False), [request(str(i), prompt(9 + i)) for i in range(4)])
    middle = found.records[2:10]
    assert all(a.group != b.group for a, b in itertools.pairwise(middle))
    assert all(s % 2 == r.group for r in found.records for s in r.slot)


def test_nothing_leaks() -> None:
    e = engine(tiny(), ctx=256, mtp_varlen=False)
    run(e, [request(str(i), prompt(20 * i + 1, seed=i % 3), temperature=i % 2) for i in range(9)])
    kept = {p for entry in e.prefix.entries.values() for p in entry.pages}  # type: ignore[union-attr]
    pool = e.kv.pages
    assert len(pool.free) + len(kept) == pool.count - 1
    assert sum(pool.references) == sum(len(x.pages) for x in e.prefix.entries.values())  # type: ignore[union-attr]
    while e.prefix.evict():  # type: ignore[union-attr]
        pass
    assert len(pool.free) == pool.count - 1


def test_the_prefix_cache_keeps_its_budget() -> None:
    e = engine(tiny(), ctx=512)
    e.prefix.budget_bytes = 400_000  # type: ignore[union-attr]
    for i in range(6):
        run(e, [request(str(i), prompt(130, seed=i), max_tokens=4)])
        assert 0 < e.prefix.nbytes <= 400_000  # type: ignore[union-attr]
    found = run(e, [request("again", prompt(130, seed=5), max_tokens=4)])
    assert found.results["again"].cached_tokens == 128


def test_records_are_what_section_8_says() -> None:
    found = run(engine(tiny(), prefill_chunk=64), [request(str(i), prompt(30 * i + 1)) for i in range(6)])
    for r in found.records:
        assert len(r.slot) == len(r.request) == len(r.prompt) == len(r.L) == len(r.keeps) == len(r.reason) == r.slots
        assert r.rows == sum(r.L) + sum(r.prompt)
        assert r.drafts == sum(max(n - 1, 0) for n in r.L)
        assert r.accepted <= r.verified <= r.drafts
        assert (sum(r.drafted_by), sum(r.accepted_by)) == (r.verified, r.accepted)
        assert all(k <= L or (L == 0 and k == 1 and p > 0) for L, k, p in zip(r.L, r.keeps, r.prompt))
        assert r.slot == sorted(r.slot)
        assert r.bucket >= r.rows
        expected = "chain" if r.drafts else "batch"
        if sum(r.prompt):
            expected = "mixed" if sum(r.L) else "prefill"
        assert r.kind == expected
        assert set(r.ms) == {"plan", "draft", "verify", "sample", "commit", "host"}
        assert sum(r.ms.values()) == pytest.approx(r.step_ms, rel=1e-6)
    timings = [r.timings for r in found.results.values()]
    assert all(0 <= t.queue_ms <= t.ttft_ms <= t.total_ms for t in timings)
    assert all(t.ttft_ms == pytest.approx(t.queue_ms + t.prefill_ms) for t in timings)


def test_timings_are_those_at_which_tokens_left() -> None:
    """A clock that ticks once a window; three requests, two seats, one of them cancelled."""
    e, now = engine(tiny(), batch=2, mtp_varlen=False), [10.0]
    set_clock(e, lambda: now[0])
    left: dict[str, list[tuple[float, int]]] = {str(i): [] for i in range(3)}
    entered, ended = {}, {}
    for i in range(3):
        e.submit(request(str(i), prompt(30 + i)))
        now[0] += 0.25
    while e.has_work:
        now[0] += 1
        if now[0] > 16:
            e.cancel("1")
        for event in e.step():
            if isinstance(event, Started):
                entered[event.request_id] = now[0]
            elif isinstance(event, Tokens):
                left[event.request_id].append((now[0], len(event.token_ids)))
            elif isinstance(event, Finished):
                ended[event.request_id] = now[0], event.result
    for i, (end, result) in ended.items():
        t, submitted = result.timings, 10 + 0.25 * int(i)
        (first, _), (last, _) = left[i][0], left[i][-1]
        assert t.queue_ms == pytest.approx(1000 * (entered[i] - submitted))
        assert t.ttft_ms == pytest.approx(1000 * (first - submitted))
        assert t.prefill_ms == pytest.approx(1000 * (first - entered[i]))
        assert t.decode_ms == pytest.approx(1000 * (last - first))
        assert t.total_ms == pytest.approx(1000 * (end - submitted))
        tokens = sum(n for _, n in left[i])
        assert tokens == len(result.token_ids)
        assert t.decode_tok_s == pytest.approx((tokens - 1) / (last - first))
    assert ended["1"][1].finish_reason == "cancelled"
    assert ended["2"][1].timings.queue_ms > 1000  # it waited for a seat


def test_log_probabilities_come_from_the_tokens_own_row() -> None:
    """Unprocessed, whatever the temperature and penalties; the same with and without drafts."""
    given = {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.2, "logprobs": 3}
    rows: list[torch.Tensor] = []
    e = engine(tiny(), mtp_varlen=False)
    drafted = run(e, [request("0", prompt(12), **given)]).results["0"]
    plain = engine(tiny(), spec=0)
    found = plain.judge

    def watch(_: str, position: int, row: torch.Tensor) -> None:
        rows.append(row.clone())

    plain.submit(request("0", prompt(12), **given))
    found.watch = watch
    while plain.has_work:
        plain.step()
    assert len(drafted.logprobs) == len(drafted.token_ids) == len(rows)
    for entry, token, row in zip(drafted.logprobs, drafted.token_ids, rows):
        expected = row.double() - torch.logsumexp(row.double(), 0)
        assert entry.token == token
        assert entry.logprob == pytest.approx(expected[token].item(), abs=1e-5)
        top = sorted(enumerate(expected.tolist()), key=lambda x: -x[1])[:3]
        assert [t for t, _ in entry.top] == [t for t, _ in top]
        assert [p for _, p in entry.top] == pytest.approx([p for _, p in top], abs=1e-5)
