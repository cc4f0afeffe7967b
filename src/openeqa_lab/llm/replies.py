"""What a vendor's reply, as litellm gives it, holds: text, how it ended, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openeqa_lab.llm import FinishReason
from openeqa_lab.records import Usage

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}

# Ends that came from the server (OpenRouter's, vLLM's, GLM's, Gemini's) and that litellm gives out
# as ``stop``.
_BROKEN_OFF = frozenset({"error", "abort", "network_error", "malformed_response"})


@dataclass(frozen=True, slots=True)
class Prices:
    """A model's list prices, in dollars a token.

    Args:
        prompt: Of a prompt token.
        completion: Of a reply's token.
        cache_read: Of a prompt token that the vendor read from its cache.
        cache_write: Of a prompt token that the vendor put there.
    """

    prompt: float
    completion: float
    cache_read: float
    cache_write: float

    def saved(self, read: int, written: int) -> float:
        """Dollars that the vendor's prompt cache saved; negative where it only cost."""
        return read * (self.prompt - self.cache_read) - written * (self.cache_write - self.prompt)


def prices(listed: Mapping[str, Any], provider: str, name: str) -> Prices | None:
    """A vendor's model in litellm's list; None where it is not, or stands there with 0.

    A price of 0 is one that nobody has entered.
    """
    entry = listed.get(f"{provider}/{name}") or listed.get(name) or {}
    prompt = float(entry.get("input_cost_per_token") or 0.0)
    completion = float(entry.get("output_cost_per_token") or 0.0)
    if not str(entry.get("litellm_provider", "")).startswith(provider):
        return None
    if not prompt and not completion:
        return None
    read = entry.get("cache_read_input_token_cost")
    write = entry.get("cache_creation_input_token_cost")
    return Prices(
        prompt,
        completion,
        prompt if read is None else float(read),
        prompt if write is None else float(write),
    )


def finish_reason(choice: Any) -> FinishReason:
    """How a choice ended; a refusal is told by its own field, which differs by vendor."""
    extra = getattr(choice.message, "provider_specific_fields", None) or {}
    if getattr(choice.message, "refusal", None) or extra.get("stop_reason") == "refusal":
        return "refusal"
    return _FINISH_REASONS.get(choice.finish_reason, "other")


def broken_off(choice: Any) -> str | None:
    """What the server says where it did not get to the end of a choice; None where it did."""
    extra = getattr(choice, "provider_specific_fields", None) or {}
    error, reason = extra.get("error"), str(extra.get("native_finish_reason"))
    if not error and reason.lower() not in _BROKEN_OFF:
        return None
    said = error.get("message") if isinstance(error, Mapping) else error
    return f"the server broke the reply off ({' '.join(str(said or reason).split())[:200]})"


def usage(response: Any, seconds: float, priced: Prices | None) -> Usage:
    """What a reply cost; unpriced where the model's price is not known."""
    counted = getattr(response, "usage", None)
    prompt = getattr(counted, "prompt_tokens", 0) or 0
    completion = getattr(counted, "completion_tokens", 0) or 0
    details = getattr(counted, "prompt_tokens_details", None)
    read = getattr(details, "cached_tokens", 0) or 0
    written = getattr(details, "cache_creation_tokens", 0) or 0
    # litellm also prices by the returned name, and own servers may return a vendor's.
    dollars = (response._hidden_params.get("response_cost") or None) if priced else None
    saved = priced.saved(read, written) if priced and (read or written) else 0.0
    return Usage(1, prompt, completion, dollars, seconds, cached_tokens=read, saved_dollars=saved)
