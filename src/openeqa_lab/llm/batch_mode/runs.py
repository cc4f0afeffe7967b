"""A batch under way, and those who wait for its results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openeqa_lab.errors import CallError
from openeqa_lab.llm import Completion, stopping
from openeqa_lab.llm.attempt import Sender
from openeqa_lab.llm.batch_mode.files import Spool
from openeqa_lab.llm.batch_mode.state import Batch
from openeqa_lab.llm.batch_mode.wire import Wire, not_answered
from openeqa_lab.records import Usage

Result = Mapping[str, Any]


@dataclass(eq=False, slots=True)
class Run:
    """A batch, and those who wait for its results.

    Args:
        batch: As it is remembered.
        spool: While it is gathered and sent.
        touched: When the last request was added, by the loop's clock.
        full: Set when it takes no more.
        waiting: By `custom_id`.
        results: Once they are here, by `custom_id`.
        task: Brings it to its end, while somebody waits.
    """

    batch: Batch
    spool: Spool | None = None
    touched: float = 0.0
    full: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[str, asyncio.Future[Result | None]] = field(default_factory=dict)
    results: Mapping[str, Result] | None = None
    task: asyncio.Task[None] | None = None

    def tell(self, error: BaseException | None) -> None:
        """Give those who wait their results, None for none, or the error."""
        for custom_id, result in self.waiting.items():
            if result.done():
                continue
            if error is not None:
                result.set_exception(own(error))
            else:
                result.set_result((self.results or {}).get(custom_id))

    @property
    def now(self) -> Batch:
        """The batch as far as it has come."""
        return self.batch if self.spool is None else self.spool.batch


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that is in a batch.

    Args:
        wire: Reads its result.
        run: That batch.
        custom_id: The request's name in it.
        result: None when the batch ended without one.
        leave: To be called when nobody waits for it any more.
    """

    wire: Wire
    run: Run
    custom_id: str
    result: asyncio.Future[Result | None]
    leave: Callable[[], None]

    async def reply(self) -> Completion:
        """Wait for the result, for days if need be.

        Raises:
            CallError: The request was not answered; or the run is being stopped, and then the batch
                goes on at the vendor.
            OpenEQAError: What is known of the batch cannot be kept on disk.
        """
        try:
            if not await unless_stopped(self.result):
                raise stopped(self.wire.sender, self.run.now)
            found = self.result.result()
        finally:
            self.leave()
        if found is None:
            said = f"batch {self.run.batch.batch_id} has ended without a result for this request"
            raise not_answered(self.wire.sender, "server", said)
        return self.wire.outcome(found)


def stopped(sender: Sender, batch: Batch | None) -> CallError:
    """What is told to those who wait when the run is being stopped; nothing is lost by it.

    Args:
        sender: Of the model.
        batch: The one they wait for, None before they are in any.
    """
    if batch is None:
        found = "the run is being stopped"
    elif batch.state == "spooled":
        found = "not sent: the run is being stopped"
    elif batch.state == "sending":
        found = "the run is being stopped while its batch is sent"
    else:
        at = f"batch {batch.batch_id} ({len(batch.ids)} requests)"
        found = f"the run is being stopped; {at} goes on at {batch.server.provider}"
    remedy = "start the same command again to go on"
    return CallError(
        f"{sender.model}: {found} ({remedy})", kind="timeout", usage=Usage(), found=found
    )


async def unless_stopped(done: asyncio.Future[Any]) -> bool:
    """Wait; False when the run was told to stop before it was done."""
    stop = stopping.get()
    if stop is None:
        await asyncio.wait((done,))
        return True
    watch = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((done, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
    return done.done()


def own(error: BaseException) -> BaseException:
    """A call's error for one of several who wait: each adds to it what it knows."""
    if not isinstance(error, CallError):
        return error
    return CallError(
        str(error),
        kind=error.kind,
        raw=error.raw,
        usage=error.usage,
        retry_after_s=error.retry_after_s,
        status=error.status,
        found=error.found,
    )
