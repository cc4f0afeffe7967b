"""What a model takes of the parameters that are asked for, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

# In this order: where two exclude each other, the first is kept.
NAMES = ("max_tokens", "reasoning_effort", "temperature", "seed")


@dataclass(frozen=True, slots=True)
class Effective:
    """Parameters as they are sent.

    Args:
        values: As litellm takes them.
        adjusted: One phrase for each that is dropped, raised or goes by another name, for records.
    """

    values: Mapping[str, object]
    adjusted: tuple[str, ...]


def effective(
    litellm: ModuleType,
    provider: str,
    name: str,
    asked: Mapping[str, object],
    reasoning_tokens: int,
) -> Effective:
    """The parameters that a model takes.

    Args:
        litellm: Knows what its vendors document.
        provider: As litellm calls it.
        name: The model's, at that provider.
        asked: By `NAMES`; None is not sent.
        reasoning_tokens: Added to ``max_tokens`` where the model reasons in hidden text, which the
            vendors count as part of the reply.
    """
    reasons = litellm.supports_reasoning(model=name, custom_llm_provider=provider)
    values: dict[str, object] = {}
    adjusted: list[str] = []
    for parameter in NAMES:
        value = asked.get(parameter)
        if value is None:
            continue
        sent = value
        if parameter == "max_tokens" and isinstance(value, int) and reasons:
            sent = value + reasoning_tokens
        try:
            wire = _on_the_wire(litellm, provider, name, {**values, parameter: sent})
        except litellm.UnsupportedParamsError:
            adjusted.append(f"{parameter}={value} is not sent: the model does not take it")
            continue
        values[parameter] = sent
        if sent != value:
            adjusted.append(f"{parameter}={value} is raised to {sent} for hidden reasoning")
        other = [key for key in wire if key.startswith("max_")]
        if parameter == "max_tokens" and parameter not in wire and other:
            adjusted.append(f"{parameter} is sent as {other[0]}")
    return Effective(values, tuple(adjusted))


def _on_the_wire(
    litellm: ModuleType, provider: str, name: str, values: Mapping[str, object]
) -> Mapping[str, object]:
    """What litellm makes of the parameters for this vendor."""
    made: Mapping[str, object] = litellm.utils.get_optional_params(
        model=name, custom_llm_provider=provider, **values
    )
    return made
