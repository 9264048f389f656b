"""Ways to damage files, for the tests and for tests/torture.py."""

import random

import torch


def flip_bit(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Truncate a file, flip bits, or overwrite, insert or repeat a piece of it."""
    place = rng.randrange(len(content))
    piece = rng.randbytes(rng.randrange(1, 200))
    return rng.choice(
        [
            lambda: content[:place],
            lambda: flip_bit(content, rng),
            lambda: content[:place] + piece + content[place + len(piece) :],
            lambda: content[:place] + piece + content[place:],
            lambda: content[:place] + content[place // 2 :],
            lambda: piece,
        ]
    )()


def places(state, path: tuple = ()):
    """The containers in a nested state, each with one of its keys."""
    entries = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in entries:
        yield state, key, (*path, key)
        yield from places(value, (*path, key))


def damage_state(state, rng: random.Random) -> str:
    """Drop an entry of a nested state, or replace it by something of another type, shape or size."""
    container, key, path = rng.choice(list(places(state)))
    value, others = container[key], [None, "text", -1, 10**30, 1.5, [], {}, [1], {"a": 1}, float("nan")]
    if torch.is_tensor(value):
        others = [value[None], value.flatten()[:1], value.double(), value.long(), torch.full_like(value, -1), None, 3]
        others += [torch.full_like(value, torch.nan)] if value.is_floating_point() else []
    if rng.random() < 0.25:
        del container[key]
        return f"{path} dropped"
    container[key] = rng.choice(others)
    return f"{path} replaced by {str(container[key])[:60]}"
