"""Batches at endpoints of OpenAI's shape: files of requests, and files of results."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from openeqa_lab.errors import CallError, CallKind
from openeqa_lab.llm import Completion
from openeqa_lab.llm.attempt import Sender
from openeqa_lab.llm.batch_mode.http import Http, one_line
from openeqa_lab.llm.batch_mode.state import Batch
from openeqa_lab.llm.batch_mode.wire import (
    Look,
    body,
    not_answered,
    replied,
    turned_away,
    unreadable,
)
from openeqa_lab.records import Usage

# Of a file of requests: https://platform.openai.com/docs/api-reference/batch/create
MOST_REQUESTS = 50_000
MOST_BYTES = 200_000_000

_ENDPOINT = "/v1/chat/completions"
_ENDED = ("completed", "failed", "expired", "cancelled")
_NAMED = "openeqa_lab"  # the key of our name in a batch's metadata
_CLOCKS_APART_S = 86400.0
# What a whole batch is refused with; other codes are about what its lines say.
_REFUSALS: Mapping[str, CallKind] = {
    "token_limit_exceeded": "rate_limit",  # more tokens wait than the account may have waiting
    "model_not_found": "not_found",
    "billing_hard_limit_reached": "auth",
    "insufficient_quota": "auth",
}


@dataclass(frozen=True, slots=True)
class OpenAIShaped:
    """A batch endpoint of OpenAI's shape, at OpenAI or elsewhere.

    Args:
        sender: Of the model.
        http: The server, its address ending in ``/v1`` or what stands for it.
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
        return MOST_BYTES

    def line(self, custom_id: str, messages: Sequence[Mapping[str, object]], /) -> bytes:
        """A request as it stands in a batch."""
        return one_line(
            {
                "custom_id": custom_id,
                "method": "POST",
                "url": _ENDPOINT,
                "body": body(self.sender, messages),
            }
        )

    async def upload(self, requests: Path, /) -> str:
        """Send the file of requests, which OpenAI drops by itself after a month."""
        return self.http.id_of(await self.http.upload("/files", requests, {"purpose": "batch"}))

    async def create(self, batch: Batch, _requests: Path, uploaded: str, /) -> str:
        """Have the file of requests worked through."""
        wanted = {
            "input_file_id": uploaded,
            "endpoint": _ENDPOINT,
            "completion_window": "24h",
            "metadata": {_NAMED: batch.name},
        }
        return self.http.id_of(await self.http.json("POST", "/batches", body=wanted))

    async def find(self, batch: Batch, _others: Collection[str], /) -> str | None:
        """The id of the batch that carries our name; pages go from the newest to the oldest."""
        query = {"limit": "100"}
        while True:
            page = await self.http.json("GET", "/batches", query=query)
            listed = [each for each in page.get("data") or () if isinstance(each, dict)]
            for each in listed:
                if (each.get("metadata") or {}).get(_NAMED) == batch.name:
                    return self.http.id_of(each)
            begun = [each.get("created_at") or 0 for each in listed]
            if not page.get("has_more") or max(begun, default=0) < batch.sent - _CLOCKS_APART_S:
                return None
            query["after"] = self.http.id_of(listed[-1])

    async def look(self, batch_id: str, /) -> Look:
        """How far it has come."""
        found = await self.http.json("GET", f"/batches/{batch_id}")
        status = str(found.get("status"))
        counts = found.get("request_counts") or {}
        files = [found.get("output_file_id"), found.get("error_file_id")]
        results = tuple(str(file) for file in files if file)
        failed = status == "failed" and not results
        return Look(
            status,
            status in _ENDED,
            (counts.get("completed") or 0) + (counts.get("failed") or 0),
            results,
            self._refused(batch_id, found) if failed else None,
        )

    async def fetch(self, look: Look, into: BinaryIO, /) -> None:
        """The file of replies, and that of errors."""
        for file_id in look.results:
            await self.http.download(f"/files/{file_id}/content", into)
            into.write(b"\n")

    def outcome(self, result: Mapping[str, Any], /) -> Completion:
        """What one line of a file of results says."""
        response, error = result.get("response"), result.get("error")
        if isinstance(error, dict):
            return self._error(error)
        if not isinstance(response, dict) or not isinstance(response.get("body"), dict):
            raise not_answered(self.sender, "server", "a result that holds no reply")
        said, status = response["body"], response.get("status_code")
        if not isinstance(status, int) or not 200 <= status < 300:
            code = status if isinstance(status, int) else 500
            return turned_away(self.sender, code, json.dumps(said), self.http.address)
        if not isinstance(said.get("choices"), list):  # litellm would make up an empty one
            raise unreadable(self.sender, "it has no choices")
        try:
            reply = self.sender.litellm.ModelResponse(**said)
        except (ValueError, TypeError) as found:
            raise unreadable(self.sender, str(found)) from None
        return replied(self.sender, reply)

    def _error(self, error: Mapping[str, Any]) -> Completion:
        code, said = str(error.get("code")), str(error.get("message"))
        if code == "batch_expired":
            raise not_answered(self.sender, "timeout", f"the batch's time was over: {said}")
        if code == "batch_cancelled":
            raise not_answered(self.sender, "server", f"the batch was cancelled: {said}")
        status = {"rate_limit_exceeded": 429, "content_filter": 400}.get(code, 500)
        text = json.dumps({"error": {"message": f"{code}: {said}"}})
        return turned_away(self.sender, status, text, self.http.address)

    def _refused(self, batch_id: str, found: Mapping[str, Any]) -> CallError:
        """Why the server did not begin a batch."""
        errors = found.get("errors")
        listed = (errors.get("data") if isinstance(errors, dict) else errors) or []
        data = [each for each in listed if isinstance(each, dict)]
        kinds = [_REFUSALS[each["code"]] for each in data if each.get("code") in _REFUSALS]
        kind: CallKind = kinds[0] if kinds else "bad_request"
        said = "; ".join(f"{each.get('code')}: {each.get('message')}" for each in data[:3])
        what = f"the server refused batch {batch_id} as a whole: {said or 'it does not say why'}"
        if kind == "rate_limit":
            return CallError(
                f"{self.sender.model}: {what} (start the same command again when other batches of "
                "this account have ended)",
                kind=kind,
                usage=Usage(),
                found=what,
            )
        return self.sender.failure(kind, what, Usage())
