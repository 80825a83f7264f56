"""The block pool: page ids with reference counts. No torch."""

from collections.abc import Sequence


class PagePool:
    """Pages 1 .. count - 1; page 0 is nobody's."""

    def __init__(self, count: int):
        assert count >= 2
        self.count = count
        self.references = [0] * count
        self.free = list(range(count - 1, 0, -1))

    def take(self, wanted: int) -> list[int] | None:
        """`wanted` free pages with one reference each (none for a number below 1), or None if there are too few."""
        if wanted > len(self.free):
            return None
        pages = [self.free.pop() for _ in range(wanted)]
        for page in pages:
            self.references[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more reference to each page, all of them in use."""
        for page in pages:
            assert self.references[page] > 0, f"page {page} is free"
            self.references[page] += 1

    def drop(self, pages: Sequence[int]) -> None:
        """One reference less; a page without any is free."""
        for page in pages:
            assert self.references[page] > 0, f"page {page} is free"
            self.references[page] -= 1
            if not self.references[page]:
                self.free.append(page)
