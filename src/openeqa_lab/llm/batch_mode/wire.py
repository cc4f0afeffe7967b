"""What a vendor's batch endpoint can be asked, whoever's it is, and the plain HTTP below it.

litellm makes the requests and reads the replies, as for an ordinary call. Its own functions for
batches are not used: it has none for Anthropic, opens a connection for each of them that it does
not close, and fetches the results of a batch that has ended a second time for its own logs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from openeqa_lab.errors import CallError, CallKind
from openeqa_lab.llm import Completion
from openeqa_lab.llm.attempt import Sender
from openeqa_lab.llm.batch_mode.state import Batch
from openeqa_lab.records import Usage

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """How far a batch has come.

    Args:
        status: In the vendor's word.
        ended: Whether it will come no further.
        done: Requests that have a result, of whatever kind.
        results: Where they are at the vendor.
        failure: Why no request of it was answered, None where some may have been.
    """

    status: str
    ended: bool
    done: int
    results: tuple[str, ...] = ()
    failure: CallError | None = None


class Wire(Protocol):
    """A vendor's batch endpoint. What fails raises a `CallError` that nothing was paid for."""

    @property
    def sender(self) -> Sender:
        """Of the model, for what it knows and how it words failures."""
        ...

    @property
    def most_requests(self) -> int:
        """Of a batch."""
        ...

    @property
    def most_bytes(self) -> int:
        """Of a batch's requests together."""
        ...

    def line(self, custom_id: str, messages: Sequence[Mapping[str, object]], /) -> bytes:
        """A request as it stands in a batch: one line, the same body that an ordinary call has."""
        ...

    async def upload(self, requests: Path, /) -> str:
        """Send what creates no batch yet; the vendor's id of it, empty where there is no such."""
        ...

    async def create(self, batch: Batch, requests: Path, uploaded: str, /) -> str:
        """Have the vendor begin; its id of the batch."""
        ...

    async def find(self, batch: Batch, others: Collection[str], /) -> str | None:
        """The id of a batch that was perhaps created; None when it was not.

        Args:
            batch: Ours.
            others: Ids of batches that are not it.
        """
        ...

    async def look(self, batch_id: str, /) -> Look:
        """How far it has come."""
        ...

    async def fetch(self, look: Look, into: BinaryIO, /) -> None:
        """Write all results of a batch that has ended, one line each."""
        ...

    def outcome(self, result: Mapping[str, Any], /) -> Completion:
        """What one result says.

        Raises:
            CallError: This request was not answered, or not with a text that can be used.
        """
        ...


def body(sender: Sender, messages: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """The body of a request, made by the part of litellm that makes an ordinary call's."""
    litellm, known = sender.litellm, sender.known
    config = litellm.utils.ProviderConfigManager.get_provider_chat_config(
        model=known.name, provider=litellm.LlmProviders(known.provider)
    )
    parameters = litellm.utils.get_optional_params(
        model=known.name, custom_llm_provider=known.provider, **known.sent.values
    )
    made: dict[str, Any] = config.transform_request(
        model=known.name,
        messages=messages,
        optional_params=parameters,
        litellm_params={},
        headers={},
    )
    made.pop("stream", None)
    return made | (made.pop("extra_body", None) or {})


def turned_away(sender: Sender, status: int, said: str, address: str) -> Completion:
    """What one request's error means, as that of an ordinary call with this status would.

    Vendors bill no such request.

    Raises:
        CallError: Always, unless a filter blocked the request.
    """
    import httpx

    request = httpx.Request("POST", address)
    response = httpx.Response(status, text=said, request=request)
    error = httpx.HTTPStatusError(said, request=request, response=response)
    try:
        return replace(sender.turned_away(error, 0.0), usage=Usage(1))
    except CallError as failed:
        failed.usage = Usage(1)
        raise


def not_answered(sender: Sender, kind: CallKind, found: str) -> CallError:
    """A request that was in a batch, and that nobody answered or billed."""
    return CallError(
        f"{sender.model}: {found} (start the same command again: it is asked in the next batch)",
        kind=kind,
        usage=Usage(1),
        found=found,
    )


def unreadable(sender: Sender, why: str) -> CallError:
    """A reply that came, and was paid, and is of no use."""
    said = " ".join(why.split())[:100]
    return sender.failure(
        "server", f"a reply in the batch that cannot be read ({said})", Usage(1, dollars=None)
    )


def replied(sender: Sender, response: Any) -> Completion:
    """What an answered request says, at the batch's price; waiting for it is not counted.

    Prices are litellm's ``*_cost_per_token_batches`` as shares of its list prices, a half where it
    has none (https://platform.openai.com/docs/guides/batch and
    https://docs.anthropic.com/en/docs/build-with-claude/batch-processing, which have what is read
    from the prompt cache at half its price, too).
    """
    used = getattr(response, "usage", None)
    saved = 0.0
    if sender.known.prices is not None and used is not None:
        full, paid = _dollars(sender, used)
        response._hidden_params["response_cost"] = paid
        saved = full - paid
    try:
        reply = sender.completion(response, 0.0)
    except CallError as error:  # a token limit that was spent on hidden reasoning is paid, too
        error.usage = _saving(error.usage or Usage(), saved)
        raise
    return replace(reply, usage=_saving(reply.usage, saved))


def _dollars(sender: Sender, used: Any) -> tuple[float, float]:
    """What these tokens cost by the list, and in a batch."""
    litellm, known = sender.litellm, sender.known
    prompt, completion = litellm.cost_per_token(
        model=known.name, custom_llm_provider=known.provider, usage_object=used
    )
    of_prompt, of_completion = shares(litellm.model_cost, known.provider, known.name)
    return prompt + completion, prompt * of_prompt + completion * of_completion


def _saving(usage: Usage, saved: float) -> Usage:
    return replace(usage, saved_dollars=usage.saved_dollars + saved)


def shares(listed: Mapping[str, Any], provider: str, name: str) -> tuple[float, float]:
    """What a batch costs of the list price, for prompts and for replies."""
    entry = listed.get(f"{provider}/{name}") or listed.get(name) or {}
    found = []
    for side in ("input", "output"):
        full = entry.get(f"{side}_cost_per_token")
        batched = entry.get(f"{side}_cost_per_token_batches")
        found.append(batched / full if full and batched is not None else 0.5)
    return found[0], found[1]
