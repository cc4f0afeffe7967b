"""One batch of requests through a model of transformers: conversations in, replies out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openeqa_lab.errors import CallError
from openeqa_lab.llm import Completion, FinishReason
from openeqa_lab.llm.loading import Loaded
from openeqa_lab.records import Usage, whole_characters

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image as Picture


@dataclass(eq=False, slots=True)
class Request:
    """One call, and what came of it.

    Args:
        parts: Texts and pictures in order.
        system: The system message, empty for none.
        temperature: 0 takes the likeliest token.
        max_tokens: Limit of the reply.
        seed: Of its draws.
        outcome: None until it has run.
        dropped: Nobody waits for it any more.
    """

    parts: Sequence[str | Picture]
    system: str
    temperature: float
    max_tokens: int
    seed: int
    outcome: Completion | CallError | None = None
    dropped: bool = False

    @property
    def texts(self) -> list[str]:
        """The texts alone."""
        return [part for part in self.parts if isinstance(part, str)]

    @property
    def pictures(self) -> int:
        """How many there are."""
        return len(self.parts) - len(self.texts)

    @property
    def kind(self) -> tuple[int, int]:
        """What the requests of one batch have in common."""
        return self.pictures, self.max_tokens


def answer(loaded: Loaded, requests: Sequence[Request]) -> None:
    """Give each request its outcome: a reply, or why it is refused.

    Raises:
        RuntimeError: The device has too little memory, which torch says in several ways.
    """
    asked = [each for each in requests if not _refuse(loaded, each)]
    if not asked:
        return
    inputs = _inputs(loaded, asked)
    if inputs is None:
        for each in asked if len(asked) > 1 else ():
            answer(loaded, [each])
        return
    counts = [int(count) for count in inputs["attention_mask"].sum(1)]
    if _overflow(loaded, asked, counts):
        answer(loaded, [each for each in asked if each.outcome is None])
        return
    started = time.perf_counter()
    tokens = _generate(loaded, asked, inputs)
    seconds = time.perf_counter() - started
    prompts = inputs["input_ids"]
    for each, prompt, reply, count in zip(asked, prompts, tokens, counts, strict=True):
        thinks = loaded.tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")
        each.outcome = _read(loaded, each, reply.tolist(), count, seconds, thinks)


def _refuse(loaded: Loaded, request: Request) -> bool:
    found = ""
    if request.pictures and not loaded.sees:
        found = (
            f"it reads text alone, and was sent {request.pictures} pictures: choose a reasoner "
            "that is blind (reasoner=blind), or a model that sees"
        )
    placeholder = getattr(loaded.processor, "image_token", None) if loaded.sees else None
    if placeholder and any(placeholder in text for text in (*request.texts, request.system)):
        found = f"the text holds '{placeholder}', which stands for a picture here: take it out"
    if found:
        request.outcome = CallError(f"{loaded.name}: {found}", kind="bad_request")
    return bool(found)


def _conversation(request: Request, sees: bool) -> list[dict[str, object]]:
    """The messages, as chat templates of models that see, and of the others, want them."""

    def message(role: str, parts: Sequence[str | Picture]) -> dict[str, object]:
        if not sees:
            return {"role": role, "content": "\n".join(str(part) for part in parts)}
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": part}
            for part in parts
        ]
        return {"role": role, "content": content}

    user = message("user", request.parts)
    return [message("system", [request.system]), user] if request.system else [user]


def _inputs(loaded: Loaded, requests: Sequence[Request]) -> Mapping[str, Any] | None:
    """The tensors of a batch; None where the model's own files refuse a conversation.

    A lone request then has its outcome; of several it cannot be told which one it is.
    """
    from jinja2 import TemplateError

    how: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    tensors: dict[str, Any] = {"padding": True, "return_tensors": "pt"}
    how |= {"processor_kwargs": tensors} if loaded.sees else tensors
    try:
        return dict(
            loaded.processor.apply_chat_template(
                [_conversation(each, loaded.sees) for each in requests], **how
            )
        )
    except (TemplateError, ValueError) as error:
        if len(requests) == 1:
            said = " ".join(str(error).split())
            requests[0].outcome = CallError(
                f"{loaded.name}: its chat template or picture processor refuses the prompt: "
                f"{said[:500]} (change the prompt, the system message or the pictures' size)",
                kind="bad_request",
            )
        return None


def _overflow(loaded: Loaded, requests: Sequence[Request], counts: Sequence[int]) -> bool:
    """Refuse what is longer than the model can read; whether anything was."""
    limit = loaded.context_tokens
    for each, count in zip(requests, counts, strict=True):
        if limit is not None and count + each.max_tokens > limit:
            each.outcome = CallError(
                f"{loaded.name}: a prompt of {count} tokens with {each.pictures} pictures and a "
                f"reply of up to {each.max_tokens} need {count + each.max_tokens}, and the context "
                f"holds {limit} (fewer or smaller frames: sampler.k, reasoner.encoder.size)",
                kind="bad_request",
            )
    return any(each.outcome is not None for each in requests)


def _generate(
    loaded: Loaded, requests: Sequence[Request], inputs: Mapping[str, Any]
) -> torch.Tensor:
    """The tokens of the replies, as (requests, tokens)."""
    import torch
    from transformers import LogitsProcessorList, StoppingCriteriaList

    model = loaded.model
    moved = {
        name: value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in inputs.items()
    }
    with torch.inference_mode():
        output = model.generate(
            **moved,
            max_new_tokens=requests[0].max_tokens,
            logits_processor=LogitsProcessorList([_Draws(requests)]),
            stopping_criteria=StoppingCriteriaList([_Dropped(requests)]),
        )
    tokens: torch.Tensor = output[:, inputs["input_ids"].shape[1] :]
    return tokens


class _Draws:
    """Draws made of the likeliest token, so that each request has its own.

    The largest of the logarithms of probabilities, each with a draw of Gumbel's distribution added,
    is a draw from the probabilities (Maddison, Tarlow and Minka, A* sampling, 2014, section 2).
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        import torch

        self._temperatures = [each.temperature for each in requests]
        # On the processor, so that a draw does not depend on the device.
        self._generators = [torch.Generator().manual_seed(each.seed) for each in requests]

    def __call__(self, _tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        scores = scores.clone()  # (requests, vocabulary)
        for row, temperature in enumerate(self._temperatures):
            if temperature > 0:
                even = torch.rand(
                    scores.shape[1], generator=self._generators[row], dtype=torch.float64
                )
                gumbel = -torch.log(-torch.log(even))
                scores[row] = scores[row] / temperature + gumbel.to(scores)
        return scores


class _Dropped:
    """Ends the replies that nobody waits for."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def __call__(self, tokens: torch.Tensor, _scores: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.tensor([each.dropped for each in self._requests], device=tokens.device)


def _read(
    loaded: Loaded, request: Request, tokens: list[int], count: int, seconds: float, thinks: bool
) -> Completion | CallError:
    """The reply that the tokens are; hidden reasoning is left out of its text."""
    end = next((place for place, token in enumerate(tokens) if token in loaded.ends), None)
    reason: FinishReason = "length" if end is None else "stop"
    written = len(tokens) if end is None else end + 1
    usage = Usage(1, count, written, 0.0, seconds)
    said = loaded.tokenizer.decode(tokens[:end], skip_special_tokens=True)
    text = whole_characters(_without_thoughts(said, thinks))
    if reason == "length" and not text.strip():
        return CallError(
            f"{loaded.name}: the token limit (max_tokens={request.max_tokens}) was spent before "
            "any text came (hidden reasoning counts too: raise llm.max_tokens)",
            kind="truncated",
            usage=usage,
        )
    return Completion(text, reason, loaded.name, usage)


def _without_thoughts(text: str, thinks: bool) -> str:
    """What follows the model's reasoning, which its template or itself has begun."""
    if thinks or text.lstrip().startswith("<think>"):
        return text.partition("</think>")[2].lstrip()
    return text
