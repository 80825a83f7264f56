"""Seeds: drawn when a request brings none, derived for candidates and retries."""

import hashlib
import secrets


def fresh_seed() -> int:
    """A random 63-bit seed (fits JSON readers that know signed integers only)."""
    return secrets.randbits(63)


def derive_seed(seed: int, *path: int | str) -> int:
    """A seed for one of many that share `seed`: candidates, attempts, requests of a batch. 63 bits of
    sha256(seed/path).
    """
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
