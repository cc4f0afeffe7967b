"""Plain HTTP to a batch endpoint: much goes from and to the disk, little is held."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from openeqa_lab.errors import CallError
from openeqa_lab.llm import failures
from openeqa_lab.llm.attempt import Sender
from openeqa_lab.records import Usage

if TYPE_CHECKING:
    import ssl

    import httpx

_MOVING_S = 600.0  # the longest silence while hundreds of megabytes are sent and taken in
_A_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Http:
    """Requests to one server, each with a connection of its own: there is one in minutes.

    Args:
        sender: Words what goes wrong.
        address: What all paths begin with.
        headers: With the key.
    """

    sender: Sender
    address: str
    headers: Mapping[str, str]

    async def json(
        self, method: str, path: str, *, body: object = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The reply, an object, to a small request."""
        async with self._client(self.sender.timeout_s) as client:
            response = await client.request(
                method, self.address + path, json=body, params=dict(query or {})
            )
            return self._object(response)

    async def send(self, path: str, content: AsyncIterator[bytes], length: int) -> dict[str, Any]:
        """The reply, an object, to JSON of so many bytes that is read from disk as it is sent."""
        headers = {"content-length": str(length), "content-type": "application/json"}
        async with self._client(_MOVING_S) as client:
            response = await client.post(self.address + path, content=content, headers=headers)
            return self._object(response)

    async def upload(self, path: str, source: Path, fields: Mapping[str, str]) -> dict[str, Any]:
        """The reply, an object, to a form with a file, which is read as it is sent."""
        async with self._client(_MOVING_S) as client:
            with source.open("rb") as file:
                files = {"file": (source.name, file, "application/jsonl")}
                response = await client.post(self.address + path, data=dict(fields), files=files)
            return self._object(response)

    async def download(self, path: str, into: BinaryIO) -> None:
        """Write what is there."""
        async with self._stream(path) as response:
            async for piece in response.aiter_bytes():
                into.write(piece)

    async def first_line(self, path: str) -> str:
        """The first line of what is there, empty where there is none."""
        async with self._stream(path) as response:
            async for line in response.aiter_lines():
                return line
        return ""

    def id_of(self, found: Mapping[str, Any]) -> str:
        """What the server calls a thing that it tells of."""
        if isinstance(found.get("id"), str) and found["id"]:
            return str(found["id"])
        raise self.sender.failure("server", f"a reply without an id: {found}"[:200], Usage())

    def refusal(self, response: httpx.Response) -> CallError:
        """What a status that is no success means."""
        import httpx

        error = httpx.HTTPStatusError(response.text, request=response.request, response=response)
        return self.sender.failure(failures.kind(error), failures.describe(error), Usage(), error)

    def _object(self, response: httpx.Response) -> dict[str, Any]:
        if not response.is_success:
            raise self.refusal(response)
        try:
            found = response.json()
        except ValueError:  # no JSON, or not in UTF-8
            found = None
        if not isinstance(found, dict):
            said = failures.without_secrets(response.text[:100])
            raise self.sender.failure("server", f"a reply that is no JSON object: {said}", Usage())
        return found

    @asynccontextmanager
    async def _stream(self, path: str) -> AsyncIterator[httpx.Response]:
        async with (
            self._client(_MOVING_S) as client,
            client.stream("GET", self.address + path) as response,
        ):
            if not response.is_success:
                await response.aread()
                raise self.refusal(response)
            yield response

    @asynccontextmanager
    async def _client(self, timeout_s: float) -> AsyncIterator[httpx.AsyncClient]:
        import httpx  # with litellm; not at the top: takes time

        timeout = httpx.Timeout(timeout_s, connect=self.sender.timeout_s)
        try:
            async with httpx.AsyncClient(
                headers=dict(self.headers), timeout=timeout, verify=_certificates()
            ) as client:
                yield client
        except httpx.HTTPError as error:
            said = failures.describe(error) or type(error).__name__
            raise self.sender.failure(failures.kind(error), said, Usage()) from None


@cache
def _certificates() -> ssl.SSLContext:
    """Whom to trust, read once: that takes a tenth of a second."""
    import httpx

    return httpx.create_ssl_context()


async def pieces(path: Path) -> AsyncIterator[bytes]:
    """A file, a megabyte at a time."""
    with path.open("rb") as file:
        while piece := file.read(_A_READ):
            yield piece


def one_line(value: object) -> bytes:
    """A value as a line of JSON."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def size(path: Path) -> int:
    """Bytes of a file."""
    return os.stat(path).st_size
