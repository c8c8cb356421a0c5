"""How the shards of a release are dealt out: into few chunks of about the same number of bytes."""

from __future__ import annotations

from collections.abc import Mapping


def chunks(sizes: Mapping[str, int], *, most: int) -> tuple[tuple[str, ...], ...]:
    """The names of ``sizes`` (bytes by name) in at most ``most`` chunks, none empty, the largest first.

    Each name goes to the chunk that has least so far, the large ones first: no chunk has more than a third more than
    the best division would give it. One name is never divided.
    """
    dealt: list[tuple[int, int, list[str]]] = [(0, number, []) for number in range(min(most, len(sizes)))]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        filled, number, names = min(dealt)
        dealt[number] = (filled + sizes[name], number, [*names, name])
    dealt.sort(key=lambda chunk: (-chunk[0], chunk[1]))
    return tuple(tuple(sorted(names)) for _, _, names in dealt)
