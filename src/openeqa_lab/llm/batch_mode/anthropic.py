"""Batches at Anthropic's endpoint: requests in the call that creates one, results as a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from openeqa_lab.llm import Completion
from openeqa_lab.llm.attempt import Sender
from openeqa_lab.llm.batch_mode.http import Http, one_line, pieces, size
from openeqa_lab.llm.batch_mode.state import Batch
from openeqa_lab.llm.batch_mode.wire import (
    Look,
    body,
    not_answered,
    replied,
    turned_away,
    unreadable,
)

# Of a batch: https://docs.anthropic.com/en/api/creating-message-batches
MOST_REQUESTS = 100_000
MOST_BYTES = 256_000_000

_PATH = "/v1/messages/batches"
_HEAD, _TAIL = b'{"requests":[', b"]}"
_CLOCKS_APART_S = 3600.0
# https://docs.anthropic.com/en/api/errors
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


@dataclass(frozen=True, slots=True)
class Anthropic:
    """Anthropic's Message Batches.

    Args:
        sender: Of the model.
        http: The server, its address without ``/v1``.
    """

    sender: Sender
    http: Http

    @property
    def most_requests(self) -> int:
        """Of a batch."""
        return MOST_REQUESTS

    @property
    def most_bytes(self) -> int:
        """Of a batch's requests together."""
        return MOST_BYTES - len(_HEAD) - len(_TAIL)

    def line(self, custom_id: str, messages: Sequence[Mapping[str, object]], /) -> bytes:
        """A request as it stands in a batch."""
        return one_line({"custom_id": custom_id, "params": body(self.sender, messages)})

    async def upload(self, _requests: Path, /) -> str:
        """Nothing: a batch is created with its requests."""
        return ""

    async def create(self, _batch: Batch, requests: Path, _uploaded: str, /) -> str:
        """Send the requests, of which the vendor makes a batch at once."""

        async def content() -> AsyncIterator[bytes]:
            yield _HEAD
            left = size(requests) - 1  # the last request's end of line
            async for piece in pieces(requests):
                yield piece[:left].replace(b"\n", b",")  # JSON writes a line end within as \n
                left -= len(piece)
            yield _TAIL

        length = len(_HEAD) + size(requests) - 1 + len(_TAIL)
        return self.http.id_of(await self.http.send(_PATH, content(), length))

    async def find(self, batch: Batch, others: Collection[str], /) -> str | None:
        """The id of a batch of as many requests, begun when ours was sent.

        A batch has no name of ours. Where one has ended its results tell whose it is; one that is
        under way is taken for ours, which its results confirm or not.
        """
        query, perhaps = {"limit": "100"}, None
        while True:
            page = await self.http.json("GET", _PATH, query=query)
            listed = [each for each in page.get("data") or () if isinstance(each, dict)]
            for each in listed:
                if not _alike(batch, each) or each.get("id") in others:
                    continue
                found = self.http.id_of(each)
                if each.get("processing_status") != "ended":
                    perhaps = perhaps or found
                elif await self._first(found) in batch.ids:
                    return found
            if not page.get("has_more") or not any(_begun(batch, each) for each in listed):
                return perhaps
            query["after_id"] = self.http.id_of(listed[-1])

    async def look(self, batch_id: str, /) -> Look:
        """How far it has come; a batch has results when all of it has ended."""
        found = await self.http.json("GET", f"{_PATH}/{batch_id}")
        status = str(found.get("processing_status"))
        counts = found.get("request_counts") or {}
        done = sum(counts.get(name) or 0 for name in counts if name != "processing")
        return Look(status, status == "ended", done, (self.http.id_of(found),))

    async def fetch(self, look: Look, into: BinaryIO, /) -> None:
        """All results; asked for at our address, so that the key goes nowhere else."""
        for batch_id in look.results:
            await self.http.download(f"{_PATH}/{batch_id}/results", into)

    def outcome(self, result: Mapping[str, Any], /) -> Completion:
        """What one result says."""
        found = result.get("result")
        if not isinstance(found, dict):
            raise not_answered(self.sender, "server", "a result that holds nothing")
        kind = found.get("type")
        if kind == "expired":
            raise not_answered(self.sender, "timeout", "the batch's 24 hours were over before it")
        if kind == "canceled":
            raise not_answered(self.sender, "server", "the batch was cancelled before it")
        if kind == "errored":
            return self._error(found)
        message = found.get("message")
        if kind != "succeeded" or not isinstance(message, dict):
            raise not_answered(self.sender, "server", f"a result of the unknown type {kind}")
        return replied(self.sender, self._reply(message))

    def _reply(self, message: Mapping[str, Any]) -> Any:
        """The message in litellm's form, made by the part of it that reads an ordinary reply."""
        import httpx

        litellm, known = self.sender.litellm, self.sender.known
        config = litellm.utils.ProviderConfigManager.get_provider_chat_config(
            model=known.name, provider=litellm.LlmProviders(known.provider)
        )
        if "error" in message:
            raise unreadable(self.sender, "it holds an error")
        try:
            return config.transform_parsed_response(
                completion_response=dict(message),
                raw_response=httpx.Response(200),
                model_response=litellm.ModelResponse(),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise unreadable(self.sender, f"{type(error).__name__} {error}") from None

    def _error(self, found: Mapping[str, Any]) -> Completion:
        # The error stands in an envelope like that of a reply with an error's status.
        error = found.get("error")
        inner = error.get("error") if isinstance(error, dict) else None
        told = inner if isinstance(inner, dict) else error if isinstance(error, dict) else {}
        status = _STATUS.get(str(told.get("type")), 500)
        text = json.dumps({"error": {"message": f"{told.get('type')}: {told.get('message')}"}})
        return turned_away(self.sender, status, text, self.http.address)

    async def _first(self, batch_id: str) -> object:
        """The `custom_id` of a batch's first result, None where it has none."""
        line = await self.http.first_line(f"{_PATH}/{batch_id}/results")
        try:
            result = json.loads(line)
        except ValueError:
            return None
        return result.get("custom_id") if isinstance(result, dict) else None


def _begun(batch: Batch, listed: Mapping[str, Any]) -> bool:
    """Whether a batch was created after ours was sent."""
    try:
        created = datetime.fromisoformat(str(listed.get("created_at")).replace("Z", "+00:00"))
    except ValueError:
        return True
    return created.timestamp() > batch.sent - _CLOCKS_APART_S


def _alike(batch: Batch, listed: Mapping[str, Any]) -> bool:
    counts = listed.get("request_counts") or {}
    return sum(counts.values()) == len(batch.ids) and _begun(batch, listed)
