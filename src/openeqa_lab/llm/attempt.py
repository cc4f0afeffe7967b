"""One request, and what its reply or its error means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from openeqa_lab.errors import CallError, CallKind
from openeqa_lab.llm import Completion, failures, replies
from openeqa_lab.llm.known import Known
from openeqa_lab.records import Usage, whole_characters


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends requests of one model, each of them once.

    Args:
        litellm: The module.
        model: As the user named it, for messages.
        known: What litellm knows of it.
        timeout_s: Limit of an attempt, in seconds from sending.
    """

    litellm: ModuleType
    model: str
    known: Known
    timeout_s: float

    async def send(self, request: Mapping[str, object]) -> Completion:
        """The reply to a request in litellm's terms.

        Raises:
            CallError: The call failed; its `kind` says how.
        """
        started = time.perf_counter()
        call = self.litellm.acompletion(
            model=self.model, timeout=self.timeout_s, num_retries=0, max_retries=0, **request
        )
        try:
            response = await asyncio.wait_for(call, self.timeout_s)
        except asyncio.TimeoutError:
            usage = _unbilled("timeout", time.perf_counter() - started)
            found = f"no reply within {self.timeout_s:g} s"
            raise self.failure("timeout", found, usage) from None
        except self.litellm.exceptions.openai.OpenAIError as error:
            return self.turned_away(error, time.perf_counter() - started)
        return self.completion(response, time.perf_counter() - started)

    def completion(self, response: Any, seconds: float) -> Completion:
        """What a reply in litellm's form says."""
        usage = replies.usage(response, seconds, self.known.prices)
        if not response.choices:
            raise self.failure("server", "the reply holds no choice", usage)
        choice = response.choices[0]
        if found := replies.broken_off(choice):
            raise self.failure("server", found, usage)
        refusal = getattr(choice.message, "refusal", None)
        text = whole_characters(choice.message.content or refusal or "")
        if "</think>" in text and "<think>" not in text:  # begun in the prompt, by its template
            text = text.rpartition("</think>")[2].lstrip()
        reason = replies.finish_reason(choice)
        if reason == "length" and not text.strip():
            found = (
                f"truncated by the token limit (max_tokens={self.known.most_tokens}), which was "
                "spent before any text came"
            )
            raise self.failure("truncated", found, usage)
        return Completion(text, reason, whole_characters(str(response.model or "")), usage)

    def turned_away(self, error: Exception, seconds: float) -> Completion:
        """What an error means: a filter's block is a reply, all else is raised.

        Raises:
            CallError: The call failed; its `kind` says how.
        """
        if failures.blocked(error):
            # Vendors differ in whether they charge for what they block.
            usage = Usage(1, dollars=None, seconds=seconds)
            return Completion("", "content_filter", usage=usage)
        kind = failures.kind(error)
        raise self.failure(
            kind, failures.describe(error), _unbilled(kind, seconds), error
        ) from None

    def failure(
        self, kind: CallKind, found: str, usage: Usage, error: BaseException | None = None
    ) -> CallError:
        """The error of a failed call."""
        return CallError(
            f"{self.model}: {found} ({failures.REMEDIES[kind]})",
            kind=kind,
            usage=usage,
            retry_after_s=None if error is None else failures.retry_after_s(error),
            status=None if error is None else failures.http_status(error),
            found=found,
        )


def _unbilled(kind: CallKind, seconds: float) -> Usage:
    """What a call without a reply cost: nothing if it was turned away, else nobody says."""
    turned_away = kind in ("auth", "not_found", "bad_request", "rate_limit")
    return Usage(1, dollars=0.0 if turned_away else None, seconds=seconds)
