"""What is remembered of a batch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

_FORMAT = 1

State = Literal[
    "spooled",  # its requests are gathered; nothing was sent
    "sending",  # the vendor may have it, under an id that is not known yet
    "sent",
    "collected",  # its results are here
]


@dataclass(frozen=True, slots=True)
class Server:
    """Whose batches they are.

    Args:
        provider: As litellm calls the vendor.
        address: Of its endpoints.
        model: As the vendor calls it.
        key: The start of the key's SHA-256, never the key.
    """

    provider: str
    address: str
    model: str
    key: str


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as it is remembered.

    Args:
        name: Ours, which the vendor keeps where it keeps names.
        server: Who has it.
        state: How far it has come.
        changed: When it came there, in seconds since 1970.
        ids: Its requests' `custom_id`, once it is closed.
        sent: When sending began, in seconds since 1970.
        batch_id: The vendor's name for it.
    """

    name: str
    server: Server
    state: State = "spooled"
    changed: float = 0.0
    ids: tuple[str, ...] = ()
    sent: float = 0.0
    batch_id: str = ""


def text_of(batch: Batch) -> bytes:
    """A batch as its file holds it."""
    return json.dumps({"format": _FORMAT, **asdict(batch)}).encode("ascii")


def batch_in(text: bytes) -> Batch:
    """What a file says.

    Raises:
        ValueError: It says something else, or its fields have other types.
    """
    data = json.loads(text)
    try:
        batch = _batch(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its fields are others: {error}") from None
    texts = [getattr(batch.server, each.name) for each in fields(Server)]
    texts += [batch.name, batch.batch_id, *batch.ids]
    numbers = (batch.changed, batch.sent)
    if not (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in numbers)
        and batch.state in get_args(State)
    ):
        raise ValueError("its fields are of other types")
    return batch


def _batch(data: dict[str, Any]) -> Batch:
    if data.pop("format") != _FORMAT:
        raise ValueError("another version of openeqa_lab wrote it")
    server = Server(**data.pop("server"))
    return Batch(server=server, **{**data, "ids": tuple(data["ids"])})
