"""What a run's settings come to: compared, hashed, and told apart by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping


def comparable(identity: Mapping[str, object]) -> dict[str, object]:
    """An identity as it reads back from JSON; 0.0 is 0, since both are one temperature."""
    text = json.dumps(identity, sort_keys=True)
    values: dict[str, object] = json.loads(text, parse_float=_number)
    return values


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value


def digest(identity: Mapping[str, object]) -> str:
    """The first eight hex digits of an identity's SHA-256, as folders and verdict lines use it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """The settings that differ, each as ``name: old -> new``, nested names joined by dots."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name}: {before.get(name, 'not set')} -> {after.get(name, 'not set')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _leaves(node: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of a nested mapping by their dotted names, as JSON."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)
