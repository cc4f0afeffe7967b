"""Sends requests through a vendor's batch endpoint, at half the price, and waits for the results.

A request is written to disk as soon as it is made, and known by its content, by where it is asked
and how often it was asked there. So a start after a stop or a kill finds again what is under way,
and what came and was not written down by whoever asked, and buys nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError
from openeqa_lab.llm import place, repeat, stopping
from openeqa_lab.llm.batch_mode.files import Folder, Spool, results_in
from openeqa_lab.llm.batch_mode.runs import Result, Run, Ticket, own, stopped, unless_stopped
from openeqa_lab.llm.batch_mode.state import Batch
from openeqa_lab.llm.batch_mode.steps import Steps
from openeqa_lab.llm.batch_mode.wire import Wire
from openeqa_lab.llm.content import fingerprint
from openeqa_lab.llm.patience import Patience
from openeqa_lab.records import Usage

QUIET_S = 10.0  # without a new request, after which a batch is closed and sent
FEW = 100  # requests of a batch that was closed too early, most likely

log = logging.getLogger(__name__)

# One request at a time is held in memory, however many threads are decoding pictures.
_writer = ThreadPoolExecutor(1, thread_name_prefix="batches")
Messages = Sequence[Mapping[str, object]]


def content_of(settings: Mapping[str, object], prompt: Sequence[str | Image], system: str) -> str:
    """What a request is known by: the same when the same is asked in the same place.

    Args:
        settings: The model and its parameters, as JSON values.
        prompt: Pictures count by their bytes.
        system: The system message.
    """
    whole = [dict(settings), system, fingerprint(prompt), place.get(), repeat.get()]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode("ascii")).hexdigest()


class Batches:
    """The batches of one model at one server.

    Args:
        folder: Where they are remembered.
        wire: The server's endpoint.
        patience: How often, and with which waits, a call that failed in passing is tried again.
    """

    def __init__(self, folder: Folder, wire: Wire, patience: Patience) -> None:
        self._parts = (folder, wire, patience)
        self._desks: dict[asyncio.AbstractEventLoop, _Desk] = {}

    async def put(self, content: str, messages: Callable[[], Messages]) -> Ticket:
        """Have a request sent, unless it is under way, or its result is here, already.

        Args:
            content: What it is known by. Those that are known by the same and wait at the same
                time are different requests; one that comes later is given the same result.
            messages: Makes the request's messages, when they are needed.

        Raises:
            CallError: It cannot be found out what is under way, or the run is being stopped.
            OpenEQAError: The folder cannot be used.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._desks:
            self._desks = {each: desk for each, desk in self._desks.items() if not each.is_closed()}
            self._desks[loop] = _Desk(*self._parts)
        return await self._desks[loop].put(content, messages)


class _Desk:
    """All that is under way in one event loop."""

    def __init__(self, folder: Folder, wire: Wire, patience: Patience) -> None:
        self._wire = wire
        self._folder = folder
        self._steps = Steps(folder, wire, patience)
        self._runs: dict[str, Run] = {}  # by the batch's name
        self._known: dict[str, Run] = {}  # by `custom_id`
        self._claimed: set[str] = set()
        self._gathering: tuple[Run, Spool] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._warned = False

    async def put(self, content: str, messages: Callable[[], Messages]) -> Ticket:
        """See `Batches.put`."""
        await self._opened()
        custom_id = self._claim(content)
        try:
            run = self._holding(custom_id) or await self._gather(custom_id, messages)
        except BaseException:
            self._claimed.discard(custom_id)
            raise
        result: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        run.waiting[custom_id] = result
        if run.results is not None:
            result.set_result(run.results[custom_id])
        elif run.task is None:
            run.task = asyncio.create_task(self._work(run))
            run.task.add_done_callback(partial(self._ended, run))
        return Ticket(self._wire, run, custom_id, result, partial(self._leave, run, custom_id))

    def _leave(self, run: Run, custom_id: str) -> None:
        """Wait no longer; what nobody waits for is not worked at."""
        self._claimed.discard(custom_id)
        run.waiting.pop(custom_id, None)
        if run.waiting or run.task is None:
            return
        run.task.cancel()
        run.task = None
        if run.spool is not None:
            self._forget(run)

    async def _opened(self) -> None:
        """Find out, once, what is under way."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        if not await unless_stopped(opening):
            raise stopped(self._wire.sender, None)
        if (error := opening.exception()) is not None:
            if self._opening is opening:
                self._opening = None  # who comes later tries again
            raise own(error)

    async def _open(self) -> None:
        for batch in self._folder.batches():
            now: Batch | None = batch
            if batch.state in ("spooled", "sending"):
                now = await self._steps.settle(batch)
            if now is not None and now.name not in self._runs:
                self._add(Run(now))

    def _add(self, run: Run) -> None:
        self._runs[run.batch.name] = run
        for custom_id in run.batch.ids:
            other = self._known.get(custom_id)
            if other is None or other.batch.changed < run.batch.changed:
                self._known[custom_id] = run

    def _forget(self, run: Run) -> None:
        self._close(run)
        self._runs.pop(run.batch.name, None)
        for custom_id in [each for each, known in self._known.items() if known is run]:
            del self._known[custom_id]

    def _claim(self, content: str) -> str:
        """A `custom_id` that nobody waits for."""
        names = (
            hashlib.sha256(f"{content}/{number}".encode("ascii")).hexdigest()[:32]
            for number in count()
        )
        name = next(name for name in names if name not in self._claimed)
        self._claimed.add(name)
        return name

    def _holding(self, custom_id: str) -> Run | None:
        """The batch that has this request, unless it came to nothing there."""
        run = self._known.get(custom_id)
        if run is None:
            return None
        if run.batch.state == "collected" and run.results is None:
            run.results = results_in(self._folder.results(run.batch))
        if run.results is None:
            return run
        try:
            self._wire.outcome(run.results[custom_id])
        except (KeyError, CallError):
            return None
        return run

    async def _gather(self, custom_id: str, messages: Callable[[], Messages]) -> Run:
        """Write a request down, in the batch that is being gathered or a new one."""

        def line() -> bytes:
            return self._wire.line(custom_id, messages())

        loop = asyncio.get_running_loop()
        async with self._writing:
            stop = stopping.get()
            if stop is not None and stop.is_set():
                raise stopped(self._wire.sender, None)
            written = await loop.run_in_executor(_writer, line)
            if len(written) > self._wire.most_bytes:
                raise self._wire.sender.failure(
                    "bad_request",
                    f"a request of {len(written) / 1e6:.0f} MB, and a batch may have "
                    f"{self._wire.most_bytes / 1e6:.0f}",
                    Usage(),
                )
            if self._gathering is not None and self._full(self._gathering[1], len(written)):
                self._gathering[0].full.set()
                self._gathering, self._warned = None, True  # the last one may well be small
            if self._gathering is None:
                spool = self._folder.new()
                self._gathering = Run(spool.batch, spool), spool
                self._runs[spool.batch.name] = self._gathering[0]
            run, spool = self._gathering
            spool.add(custom_id, written)
            run.touched = loop.time()
            self._known[custom_id] = run
            return run

    def _full(self, spool: Spool, more: int) -> bool:
        """Whether a request of so many bytes is one too many for a batch."""
        most = self._wire.most_requests, self._wire.most_bytes
        return len(spool.ids) >= most[0] or spool.size + more > most[1]

    def _close(self, run: Run) -> None:
        """Let no further request into a batch."""
        if self._gathering is not None and self._gathering[0] is run:
            self._gathering = None

    async def _work(self, run: Run) -> None:
        """Bring a batch to its end."""
        if run.spool is not None:
            await self._complete(run)
            async with self._sending:  # one at a time goes up
                run.batch = await self._steps.send(run.spool)
            run.spool.lock.release()
            run.spool = None
        try:
            look = await self._steps.end(run.batch)
            run.batch, run.results = await self._steps.collect(run.batch, look)
        except CallError:
            if self._folder.again(run.batch) is None:
                self._forget(run)
            raise

    async def _complete(self, run: Run) -> None:
        """Wait until no further request belongs into a batch."""
        loop = asyncio.get_running_loop()
        while not run.full.is_set() and (left := run.touched + QUIET_S - loop.time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(run.full.wait(), left)
        self._close(run)
        requests = len(run.spool.ids) if run.spool is not None else 0
        if requests < FEW and not run.full.is_set() and not self._warned:
            self._warned = True
            log.warning(
                "%s: a batch of only %d is sent, since no other request came within %g s. A batch "
                "is waited for as a whole: if more questions are to be asked, ask them all at once "
                "(concurrency=2000)",
                self._wire.sender.model, requests, QUIET_S,
            )  # fmt: skip

    def _ended(self, run: Run, task: asyncio.Task[None]) -> None:
        """Tell those who wait how it went, and leave what is not at the vendor in order."""
        if run.task is task:
            run.task = None
        if not task.cancelled():
            run.tell(task.exception())
        if run.spool is None:
            return
        self._forget(run)
        if run.now.state == "spooled":
            run.spool.drop()
        else:
            run.spool.lock.release()
            self._opening = None  # whoever comes next finds out whether it was begun
