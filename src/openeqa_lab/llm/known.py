"""What litellm knows of a model: its vendor, the parameters it takes, and its price."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from openeqa_lab.errors import CallError
from openeqa_lab.llm.parameters import Effective, effective
from openeqa_lab.llm.replies import Prices, prices

_OWN_SERVERS = frozenset({"hosted_vllm", "lm_studio", "llamafile", "openai_like", "custom_openai"})


@dataclass(frozen=True, slots=True)
class Known:
    """A model as litellm knows it.

    Args:
        provider: As litellm calls the vendor.
        name: Of the model, at that vendor.
        sent: The parameters as they are sent.
        prices: None where no price is known.
    """

    provider: str
    name: str
    sent: Effective
    prices: Prices | None

    @property
    def most_tokens(self) -> int:
        """The reply's limit as it is sent, 0 where none is."""
        limit = self.sent.values.get("max_tokens")
        return limit if isinstance(limit, int) else 0

    @property
    def wants_marks(self) -> bool:
        """Whether the vendor's prompt cache holds only what is marked, as Anthropic's does."""
        return "claude" in self.name.lower()


def look_up(
    litellm: ModuleType,
    model: str,
    api_base: str | None,
    asked: Mapping[str, object],
    reasoning_tokens: int,
) -> Known:
    """Find a model; see `ApiModel` for the arguments.

    Raises:
        CallError: The name stands for no vendor, or for a server whose address is not given.
    """
    try:
        name, provider, _, _ = litellm.get_llm_provider(model, api_base=api_base)
    except litellm.BadRequestError:
        raise CallError(
            f"model '{model}' names no vendor that litellm knows: write vendor/model "
            "such as openai/gpt-4o, or hosted_vllm/<name> with api_base for your own server",
            kind="not_found",
        ) from None
    if provider in _OWN_SERVERS and not (
        api_base or os.environ.get(f"{provider.upper()}_API_BASE")
    ):
        # litellm would send the request to OpenAI.
        raise CallError(
            f"{model} has no server: set api_base to its address, such as http://localhost:8000/v1",
            kind="not_found",
        )
    sent = effective(litellm, provider, name, asked, reasoning_tokens)
    priced = prices(litellm.model_cost, provider, name)
    return Known(str(provider), str(name), sent, priced)
