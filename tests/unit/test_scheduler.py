"""Admission and prompt rows, and the page pool: random lives, and the rules one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strata_cli.engine.cache.pages import PagePool
from strata_cli.engine.scheduler import CHUNK_GRID, PASSES, Scheduler


def scheduler(policy: str = "mixed", chunk: int = 128, budget: int = 256, gather_s: float = 0.05) -> Scheduler[str]:
    return Scheduler(policy, chunk, budget, gather_s)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 6)), min_size=1, max_size=6),
    st.integers(64, 400),
    st.integers(64, 700),
    st.data(),
)
def test_every_prompt_is_read_once_and_in_full(
    prompts: list[tuple[int, int]], chunk: int, budget: int, data: st.DataObject
) -> None:
    """Whatever joins when: rows within budget and chunk, chunks on the grid or at the end, all read, nobody starves."""
    s = scheduler(chunk=chunk, budget=budget)
    coming = [(when, slot, length) for slot, (length, when) in enumerate(prompts)]
    read = dict.fromkeys(range(len(prompts)), 0)
    for window in range(400):
        for when, slot, length in coming:
            if when == window:
                s.start(slot, 0, length)
        rows = s.prompt_rows(lambda slot: True)
        assert sum(rows.values()) <= budget
        for slot, n in rows.items():
            length = prompts[slot][0]
            assert 0 < n <= chunk
            assert read[slot] + n == length or (read[slot] + n) % CHUNK_GRID == 0
            read[slot] += n
            s.read(slot, n)
        if window > 6 and not s.reading:
            break
        if window > 6:
            assert rows, "work is left and nobody reads"
    assert read == {slot: length for slot, (length, _) in enumerate(prompts)}


@given(st.integers(200, 2000), st.lists(st.integers(1, 400), min_size=3, max_size=6))
def test_a_prompt_lets_two_pass_at_most(long: int, shorts: list[int]) -> None:
    s = scheduler(chunk=64, budget=64)
    s.start(0, 0, long)
    s.read(0, s.prompt_rows(lambda slot: True)[0])
    passed = 0
    for i, length in enumerate(shorts, 1):
        s.start(i, 0, length)
        left = next((r.left for r in s.reading if r.slot == 0), 0)
        first = next(iter(s.prompt_rows(lambda slot: True)), None)
        if first == i and left:
            assert length * 2 < left
            passed += 1
            s.stop(i)  # it is read at once, for the test
        elif first is not None:
            s.stop(i)
    assert passed <= PASSES


def test_gather_holds_until_all_seats_or_the_clock() -> None:
    s = scheduler("gather", gather_s=0.05)
    s.add("a", 10.0)
    assert s.admissible(2, 10.0) == 0
    assert abs(s.held_s(2, 10.02) - 0.03) < 1e-9
    assert s.admissible(2, 10.051) == 1
    s.add("b", 10.01)
    assert s.admissible(2, 10.01) == 2
    s.paused = True
    assert s.admissible(2, 99.0) == 0
    assert s.held_s(2, 10.01) == 0


def test_a_preempted_request_goes_first() -> None:
    s = scheduler("gather")
    s.add("a", 1.0)
    s.put_back("b", 1.0)
    assert s.queue[0].item == "b"
    assert s.admissible(4, 1.0) == 2
    assert s.remove(lambda item: item == "a") == "a"
    assert s.remove(lambda item: item == "a") is None


class Pages(RuleBasedStateMachine):
    """Slots take, share and drop pages; the pool must agree with a plain model of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12)
        self.held: list[list[int]] = []

    @rule(n=st.integers(0, 6))
    def take(self, n: int) -> None:
        free = len(self.pool.free)
        pages = self.pool.take(n)
        if n > free:
            assert pages is None
            assert len(self.pool.free) == free
        else:
            assert pages is not None and len(pages) == n
            self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.held))
        self.pool.share(pages)
        self.held.append(list(pages))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.pool.drop(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def counts_agree(self) -> None:
        counts = [sum(pages.count(page) for pages in self.held) for page in range(12)]
        assert self.pool.references == counts
        assert sorted(self.pool.free) == [page for page in range(1, 12) if not counts[page]]


TestPages = Pages.TestCase
