"""What is done with one batch and its vendor: sent, found again, waited for, and collected.

Each step is put down before and after it, so that it may be cut off anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from openeqa_lab.errors import CallError
from openeqa_lab.llm.batch_mode.files import Folder, Spool, results_in
from openeqa_lab.llm.batch_mode.state import Batch
from openeqa_lab.llm.batch_mode.wire import Look, Wire, not_answered
from openeqa_lab.llm.patience import Patience
from openeqa_lab.records import Usage

FIRST_POLL_S = 2.0
LONGEST_POLL_S = 120.0
WORD_S = 600.0  # between two words on how far a batch has come
_LONGEST_WAIT_S = 3600.0  # for a server that asks to be left alone

# What may pass; after the last three nobody knows whether the server did what it was asked.
_PASSING = ("rate_limit", "timeout", "connection", "server")
_UNKNOWN = ("timeout", "connection", "server")

log = logging.getLogger(__name__)
Given = TypeVar("Given")


class Steps:
    """The steps of a batch at one server.

    Args:
        folder: Where batches are remembered.
        wire: The server's endpoint.
        patience: How often, and with which waits, a call that failed in passing is tried again.
    """

    def __init__(self, folder: Folder, wire: Wire, patience: Patience) -> None:
        self._folder = folder
        self._wire = wire
        self._patience = patience

    async def send(self, spool: Spool) -> Batch:
        """Have a batch begun at the vendor.

        Raises:
            CallError: It was not begun, and is forgotten; or nobody knows, and then it is
                remembered as being sent.
        """
        batch = spool.close()
        requests = self._folder.requests(batch)
        try:
            uploaded = await self._patiently(lambda: self._wire.upload(requests))
        except CallError:
            self._folder.remove(batch)
            raise
        try:
            batch_id = await self._create(batch, uploaded)
        except CallError as error:
            if error.kind not in _UNKNOWN:
                self._folder.remove(batch)
            raise
        batch = self._sent(batch, batch_id)
        log.warning(
            "batch %s: %d requests (%.1f MB) are at %s, which may take up to a day; the same "
            "command goes on with them after a stop or a kill",
            batch_id, len(batch.ids), spool.size / 1e6, batch.server.provider,
        )  # fmt: skip
        return batch

    async def settle(self, batch: Batch) -> Batch | None:
        """Find out what became of a batch whose sender has gone; None when it was never begun.

        Raises:
            CallError: The vendor cannot be asked.
        """
        lock = self._folder.lock(batch)
        if not lock.take():  # its sender is at it
            return None
        try:
            now = self._folder.again(batch)
            if now is None or now.state in ("sent", "collected"):
                return now
            batch_id = await self._find(now) if now.state == "sending" else None
            if batch_id is not None:
                log.warning("batch %s was begun by a run that was cut off: found again", batch_id)
                return self._sent(now, batch_id)
            self._folder.remove(now)
            return None
        finally:
            lock.release()

    async def end(self, batch: Batch) -> Look:
        """Wait for a batch's end, asking after it less and less often.

        Raises:
            CallError: The vendor cannot be asked, or does not know the batch any more.
        """
        interval, misses, said = FIRST_POLL_S, 0, time.monotonic()
        while True:
            wait = interval
            try:
                look = await self._wire.look(batch.batch_id)
            except CallError as error:
                misses += 1
                if error.kind == "not_found":
                    raise self._gone(batch, error) from None
                if error.kind not in _PASSING or misses >= self._patience.attempts:
                    raise self._left(batch, error) from None
                wait = max(interval, self._wait_s(misses, error))
            else:
                misses = 0
                if look.ended:
                    return look
                if time.monotonic() - said >= WORD_S:
                    said = time.monotonic()
                    log.warning(
                        "batch %s: %d of %d done (%s)",
                        batch.batch_id, look.done, len(batch.ids), look.status,
                    )  # fmt: skip
            await asyncio.sleep(wait)
            interval = min(interval * 1.5, LONGEST_POLL_S)

    async def collect(
        self, batch: Batch, look: Look
    ) -> tuple[Batch, Mapping[str, Mapping[str, Any]]]:
        """Fetch the results of a batch that has ended, by `custom_id`.

        Raises:
            CallError: It has none, or they cannot be fetched.
        """
        if look.failure is not None:
            self._folder.remove(batch)
            raise look.failure

        async def fetch() -> None:
            with self._folder.collecting(batch) as file:
                await self._wire.fetch(look, file)

        try:
            await self._patiently(fetch)
        except CallError as error:
            if error.kind == "not_found":
                raise self._gone(batch, error) from None
            raise self._left(batch, error) from None
        results = results_in(self._folder.results(batch))
        if results and not results.keys() & set(batch.ids):
            self._folder.remove(batch)
            said = f"batch {batch.batch_id} was taken for one whose sending was cut off, and is not"
            raise not_answered(self._wire.sender, "server", said)
        log.warning(
            "batch %s has ended (%s): %d results for %d requests",
            batch.batch_id, look.status, len(results), len(batch.ids),
        )  # fmt: skip
        return self._folder.write(replace(batch, state="collected")), results

    async def _create(self, batch: Batch, uploaded: str) -> str:
        """The id of the batch, begun once, even where the reply to its creation was lost."""
        tries = 0
        while True:
            try:
                return await self._wire.create(batch, self._folder.requests(batch), uploaded)
            except CallError as error:
                tries += 1
                if error.kind not in _PASSING or tries >= self._patience.attempts:
                    raise
                await self._again_after(self._wait_s(tries, error), error)
                unknown = error.kind in _UNKNOWN
            if unknown and (found := await self._find(batch)) is not None:
                return found

    async def _find(self, batch: Batch) -> str | None:
        """The id of a batch that was perhaps begun."""
        others = self._folder.batch_ids()
        try:
            return await self._patiently(lambda: self._wire.find(batch, others))
        except CallError as error:
            if error.kind not in ("not_found", "bad_request"):
                raise
            log.warning(
                "%s cannot list its batches (%s): if a batch of %d requests was begun just before "
                "the connection or the run was cut off, it is bought a second time",
                batch.server.address, error.found, len(batch.ids),
            )  # fmt: skip
            return None

    def _sent(self, batch: Batch, batch_id: str) -> Batch:
        batch = self._folder.write(replace(batch, state="sent", batch_id=batch_id))
        self._folder.drop_requests(batch)
        return batch

    async def _patiently(self, step: Callable[[], Awaitable[Given]]) -> Given:
        tries = 0
        while True:
            try:
                return await step()
            except CallError as error:
                tries += 1
                if error.kind not in _PASSING or tries >= self._patience.attempts:
                    raise
                await self._again_after(self._wait_s(tries, error), error)

    def _wait_s(self, tries: int, error: CallError) -> float:
        return min(self._patience.wait_s(tries, error.retry_after_s), _LONGEST_WAIT_S)

    async def _again_after(self, wait: float, error: CallError) -> None:
        log.warning("batches: %s; trying again in %.0f s", error.found, wait)
        await asyncio.sleep(wait)

    def _gone(self, batch: Batch, error: CallError) -> CallError:
        """The vendor has dropped it, or was told to."""
        self._folder.remove(batch)
        said = f"batch {batch.batch_id} is not there any more ({error.found})"
        gone = not_answered(self._wire.sender, "server", said)
        gone.usage = Usage(1, dollars=None)
        return gone

    def _left(self, batch: Batch, error: CallError) -> CallError:
        """It goes on without us."""
        return CallError(
            f"{error}; batch {batch.batch_id} goes on at {batch.server.provider}, and the same "
            "command collects it",
            kind=error.kind,
            usage=Usage(),
            retry_after_s=error.retry_after_s,
            status=error.status,
            found=error.found,
        )
