"""Requests that wait together, run as one batch on one thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import Completion
from openeqa_lab.llm.generation import Request, answer
from openeqa_lab.llm.loading import Loaded, Loader

_GATHER_S = 0.01  # next to nothing beside a batch, and enough for calls begun together


class Batches:
    """A model and the requests that wait for it, from any thread and event loop.

    Args:
        loader: Loads the model, at the first request.
        size: Requests run together at most.
    """

    def __init__(self, loader: Loader, size: int) -> None:
        self._loader = loader
        self._size = size
        self._loaded: Loaded | OpenEQAError | None = None
        self._waiting: list[Request] = []
        self._lock = Lock()
        # One thread, whose queue has no time limit; it ends with the interpreter.
        self._executor = ThreadPoolExecutor(1, "local-model")

    async def complete(self, request: Request) -> Completion:
        """The reply.

        Raises:
            CallError: The request is refused.
            OpenEQAError: The model cannot be loaded.
        """
        with self._lock:
            self._waiting.append(request)
        try:
            return await asyncio.wrap_future(self._executor.submit(self._finish, request))
        except asyncio.CancelledError:
            request.dropped = True
            raise

    def _finish(self, request: Request) -> Completion:
        """The outcome of a request, which an earlier batch may have brought."""
        if request.outcome is None:
            loaded = self._load()  # meanwhile more requests come
            self._run(loaded, self._batch(request))
        assert request.outcome is not None  # noqa: S101 (a batch leaves none without)
        if isinstance(request.outcome, CallError):
            raise request.outcome
        return request.outcome

    def _load(self) -> Loaded:
        if self._loaded is None:
            try:
                self._loaded = self._loader.load()
            except OpenEQAError as error:
                self._loaded = error  # those that wait are not to try it again, one by one
        if isinstance(self._loaded, OpenEQAError):
            raise self._loaded
        return self._loaded

    def _batch(self, first: Request) -> list[Request]:
        """The request with those behind it that can be run together with it."""
        time.sleep(_GATHER_S)
        with self._lock:
            waiting = [each for each in self._waiting if each is not first and not each.dropped]
            alike = [each for each in waiting if each.kind == first.kind][: self._size - 1]
            self._waiting = [each for each in waiting if each not in alike]
        return [first, *alike]

    def _run(self, loaded: Loaded, requests: Sequence[Request]) -> None:
        """Bring each request its outcome; in halves where the memory is too small for all."""
        if _fits(loaded, requests):
            return
        _empty_cache(loaded)
        if len(requests) == 1:
            request = requests[0]
            request.outcome = CallError(
                f"{loaded.name}: the memory of {loaded.device} is too small for one request with "
                f"{request.pictures} pictures (fewer or smaller frames: sampler.k, "
                "reasoner.encoder.size; else llm.dtype=bfloat16, or a smaller model)",
                kind="bad_request",
            )
            return
        half = (len(requests) + 1) // 2
        self._size = min(self._size, half)
        self._run(loaded, requests[:half])
        self._run(loaded, requests[half:])


def _fits(loaded: Loaded, requests: Sequence[Request]) -> bool:
    """Whether the requests were answered, and the memory was large enough for that."""
    import torch

    try:
        answer(loaded, [each for each in requests if each.outcome is None])
    except torch.OutOfMemoryError:
        return False
    except RuntimeError as error:
        # The processor's allocator and Apple's have no exception of their own.
        if "allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        return False
    return True


def _empty_cache(loaded: Loaded) -> None:
    import torch

    if loaded.device.type == "cuda":
        torch.cuda.empty_cache()
    elif loaded.device.type == "mps":
        torch.mps.empty_cache()
