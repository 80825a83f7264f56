from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    pages: int
    places: int
    total_bytes: int = 0
