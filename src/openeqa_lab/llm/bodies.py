"""Requests whose pictures are written into the body only while it is sent.

litellm serialises and copies a request's messages again and again, and with fifty pictures as
base64 that is most of what a call costs. So it is handed short stand-ins, and the HTTP client,
which it takes from its caller, puts the pictures in their places on the way out. A server reads
the same body either way.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import OpenEQAError

PROVIDERS = frozenset({"openai", "anthropic", "gemini", "hosted_vllm"})
_A_WRITE = 256 * 1024  # bytes of base64 that are made and sent at a time
_NOWHERE = "http://127.0.0.1:9"  # the discard port, where nothing listens

# 128 random bits, which no text holds by chance and no server is ever shown. Hexadecimal digits are
# base64, too, and JSON leaves them as they are.
_MARK = secrets.token_hex(16).encode()
_STAND_IN = re.compile(b"(%b[0-9a-f]{12})" % _MARK)
_numbers = itertools.count()
_held: dict[bytes, bytes] = {}


@contextlib.contextmanager
def held() -> Iterator[Callable[[Image], str]]:
    """Gives what makes a picture's stand-in, good for requests that are sent within the block."""
    names: list[bytes] = []

    def stand_in(image: Image) -> str:
        names.append(b"%b%012x" % (_MARK, next(_numbers)))
        _held[names[-1]] = image.data
        return names[-1].decode()

    try:
        yield stand_in
    finally:
        for name in names:
            del _held[name]


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go; None lets litellm find the vendor's own server or key."""

    model: str
    provider: str
    api_base: str | None
    api_key: str | None = field(repr=False)
    timeout_s: float


async def client(litellm: ModuleType, address: Address) -> Any:
    """The running loop's client to hand to litellm with requests that hold stand-ins.

    None where the vendor is not one of `PROVIDERS`, or where litellm, tried out once and without
    a network, does not send the model's requests through the client it is given: pictures are
    then to be written out.
    """
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    # Its other transport, which an environment variable chooses, finds proxies another way.
    if address.provider not in PROVIDERS or not AsyncHTTPHandler.should_use_aiohttp_transport():
        return None
    if address.provider == "openai":  # whose client holds them, and a notebook may change them
        from litellm.llms.openai.common_utils import get_openai_credentials

        found = get_openai_credentials(address.api_base, address.api_key)
        address = replace(address, api_base=found.api_base, api_key=found.api_key)
    here = _open.setdefault(asyncio.get_running_loop(), _Open())
    if address not in here.clients:
        here.clients[address] = asyncio.create_task(_tried(litellm, address, here.transport))
    return await asyncio.shield(here.clients[address])


async def close() -> None:
    """Close the running loop's connections."""
    if here := _open.pop(asyncio.get_running_loop(), None):
        await here.transport.close()


class _Filling(httpx.AsyncBaseTransport):
    """litellm's own transport, with the pictures in place of their stand-ins."""

    def __init__(self) -> None:
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler, get_ssl_configuration

        verify = get_ssl_configuration()
        ssl = {"ssl_verify" if isinstance(verify, bool) else "ssl_context": verify}
        self._inner: httpx.AsyncBaseTransport = AsyncHTTPHandler.create_async_transport(**ssl)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if _MARK in await request.aread():  # of a redirect nobody has read it
            request = _filled(request)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Nothing: litellm closes it after a failed connection, under the others' requests."""

    async def close(self) -> None:
        await self._inner.aclose()


@dataclass(eq=False, slots=True)
class _Open:
    """What is open on one event loop."""

    transport: _Filling = field(default_factory=_Filling)
    clients: dict[Address, asyncio.Task[Any]] = field(default_factory=dict)


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open] = WeakKeyDictionary()


def _filled(request: httpx.Request) -> httpx.Request:
    """The request as it is sent.

    Raises:
        OpenEQAError: A stand-in of a picture that is not held.
    """
    parts = _STAND_IN.split(request.content)  # a text, a stand-in, a text, ...
    texts, names = parts[::2], parts[1::2]
    if any(_MARK in text for text in texts) or not _held.keys() >= set(names):
        raise OpenEQAError(
            "a request with the stand-in of a picture that is not there is not sent: please "
            "report this, with the version of litellm"
        )
    pictures = [_held[name] for name in names]
    length = sum(map(len, texts)) + sum((len(data) + 2) // 3 * 4 for data in pictures)
    headers = httpx.Headers(request.headers)
    headers["content-length"] = str(length)
    return httpx.Request(
        request.method,
        request.url,
        headers=headers,
        stream=_Body(texts, pictures),
        extensions=request.extensions,
    )


@dataclass(eq=False, slots=True)
class _Body(httpx.AsyncByteStream):
    """Texts with pictures between them, of which a few at a time are base64."""

    texts: list[bytes]
    pictures: list[bytes]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        waiting = bytearray()
        for text, picture in itertools.zip_longest(self.texts, self.pictures, fillvalue=b""):
            waiting += text
            waiting += base64.b64encode(picture)
            if len(waiting) >= _A_WRITE:
                yield bytes(waiting)
                waiting.clear()
        yield bytes(waiting)


class _SeenError(BaseException):
    """Ends a call that is only looked at; no handler of litellm's or OpenAI's takes it for a fault.

    To word a fault, litellm first imports what takes a second.
    """


class _Looking(httpx.AsyncBaseTransport):
    """Keeps what it is given, and sends nothing."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.content)
        raise _SeenError


async def _tried(litellm: ModuleType, address: Address, transport: _Filling) -> Any:
    """The client; None where litellm leaves it aside, or does something to the stand-in."""
    looking = _Looking()
    with held() as stand_in:
        name = stand_in(Image(b"", "image/jpeg", 1, 1))
        picture = {"url": f"data:image/jpeg;base64,{name}"}
        content = [{"type": "image_url", "image_url": picture}]
        with contextlib.suppress(_SeenError, litellm.exceptions.openai.OpenAIError):
            await litellm.acompletion(
                model=address.model,
                messages=[{"role": "user", "content": content}],
                client=_client(replace(address, api_base=_NOWHERE, api_key="none"), looking),
                api_base=_NOWHERE,
                api_key="none",
                num_retries=0,
                max_retries=0,
            )
    if [seen.count(name.encode()) for seen in looking.seen] != [1]:
        return None
    return _client(address, transport)


def _client(address: Address, transport: httpx.AsyncBaseTransport) -> Any:
    """A client as litellm makes them itself, but for its transport."""
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    if address.provider != "openai":
        return AsyncHTTPHandler(timeout=address.timeout_s, transport=transport)
    from litellm.llms.openai.common_utils import get_openai_credentials
    from openai import AsyncOpenAI

    http: Any = httpx.AsyncClient(transport=transport, follow_redirects=True)
    found = get_openai_credentials(address.api_base, address.api_key)
    return AsyncOpenAI(
        api_key=found.api_key,
        base_url=found.api_base,
        organization=found.organization,
        timeout=address.timeout_s,
        max_retries=0,
        http_client=http,
    )
