"""Models behind an HTTP API, through litellm: the vendors, and servers that speak OpenAI's wire."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Literal

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import Completion, Forecast, client, rehearsing, repeat
from openeqa_lab.llm.attempt import Sender
from openeqa_lab.llm.batch_mode.batches import Batches, content_of
from openeqa_lab.llm.batch_mode.runs import Ticket
from openeqa_lab.llm.batch_mode.vendors import check_batches, open_batches
from openeqa_lab.llm.batch_mode.wire import shares
from openeqa_lab.llm.cache import OFF, CompletionCache
from openeqa_lab.llm.content import as_base64, fingerprint, messages, tokens
from openeqa_lab.llm.known import Known, look_up
from openeqa_lab.llm.limits import Limiter, limiter
from openeqa_lab.llm.patience import PATIENT, Patience
from openeqa_lab.llm.prefixes import SMALLEST_TOKENS, Prefixes, shared_part
from openeqa_lab.llm.request_limits import NO_LIMITS, RequestLimits
from openeqa_lab.llm.retries import ask
from openeqa_lab.llm.secrets import check_address, check_variable, first_set, usual_variables

log = logging.getLogger(__name__)

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ApiModel:
    """A model that is asked over the network.

    Args:
        model: As litellm names it, ``vendor/model``; ``hosted_vllm/<name>`` or ``openai/<name>``
            with `api_base` for a server of one's own.
        temperature: None is not sent.
        max_tokens: Limit of the reply, which vendors count hidden reasoning into; None is not sent.
        seed: None is not sent.
        reasoning_effort: How much a model that can shall reason in hidden text; None is not sent,
            the vendor's own default holds.
        reasoning_tokens: Added to `max_tokens` where litellm knows that the model reasons.
        api_base: Another server than the vendor's. A vendor's key is sent there only when
            `api_key_env` names it.
        api_key_env: The environment variable that holds the key; None is the vendor's usual one.
        timeout_s: Limit of one attempt in seconds, counted from sending.
        patience: How a call that failed in passing is tried again, and how fast the endpoint is
            asked.
        request_limits: What the vendor takes in one request; more is refused before it is paid.
        cache: Replies that were bought before, of this model with these parameters.
        prompt_cache: Have the vendor's cache read what an episode's questions share: the first
            prompt with the same pictures goes alone, and is marked where the vendor wants marks.
        batch: Ask through the vendor's batch endpoint: at half the price, within a day.
        batch_dir: Where batches under way are remembered, so that none is bought twice.
    """

    def __init__(
        self,
        model: str,
        temperature: float | None = 0.2,
        max_tokens: int | None = 128,
        seed: int | None = 1234,
        reasoning_effort: ReasoningEffort | None = None,
        reasoning_tokens: int = 4096,
        api_base: str | None = None,
        api_key_env: str | None = None,
        timeout_s: float = 90.0,
        patience: Patience = PATIENT,
        request_limits: RequestLimits = NO_LIMITS,
        cache: CompletionCache = OFF,
        prompt_cache: bool = False,
        batch: bool = False,
        batch_dir: str | None = None,
    ) -> None:
        if model.strip() in ("", "???"):
            raise OpenEQAError("llm.model is not set: name a model, such as openai/gpt-4o")
        if temperature is not None and not 0 <= temperature <= 2:
            raise OpenEQAError(f"llm.temperature is {temperature}: expected 0 to 2, or null")
        if max_tokens is not None and max_tokens < 1:
            raise OpenEQAError(f"llm.max_tokens is {max_tokens}: expected 1 or more, or null")
        if reasoning_tokens < 0:
            raise OpenEQAError(f"llm.reasoning_tokens is {reasoning_tokens}: expected 0 or more")
        if not timeout_s > 0:
            raise OpenEQAError(f"llm.timeout_s is {timeout_s}: expected more than 0 seconds")
        if api_base is not None:
            check_address(api_base)
        if api_key_env is not None:
            check_variable(api_key_env)
        if batch and not batch_dir:
            raise OpenEQAError(
                "llm.batch is true and llm.batch_dir is not set: give a folder in which batches "
                "under way are remembered, or the next start would buy them again"
            )
        self._model = model
        self._parameters: dict[str, object] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "reasoning_effort": reasoning_effort,
        }
        self._reasoning_tokens = reasoning_tokens
        self._api_base = api_base
        self._api_key_env = api_key_env
        self._timeout_s = timeout_s
        self._patience = patience
        self._request_limits = request_limits
        self._cache = cache
        self._prompt_cache = prompt_cache
        self._batch_dir = Path(batch_dir) if batch and batch_dir else None
        self._batches: dict[str | None, Batches] = {}  # by key
        self._prefixes = Prefixes()
        self._known: Known | None = None

    @property
    def identity(self) -> Mapping[str, object]:
        """Model and sampling parameters as asked for."""
        asked = {"reasoning_tokens": self._reasoning_tokens, **self._parameters}
        return {"name": "api", "model": self._model, **asked}

    async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
        """The reply; texts and pictures are sent in the order given.

        Raises:
            CallError: The call failed; its `kind` says how.
        """
        litellm = await asyncio.to_thread(client.load)
        await client.close_with_loop(litellm)
        known = self._look_up(litellm)
        self._request_limits.check(self._model, prompt, system)
        if self._cache.mode == "off" or rehearsing.get():
            bought = self._buy(litellm, known, prompt, system)
            del prompt  # a batch takes hours, and shall hold no pictures
            reply = await bought
        else:
            reply = await self._cache.through(
                await asyncio.to_thread(self._everything, known, prompt, system),
                lambda: self._buy(litellm, known, prompt, system),
            )
        return replace(reply, adjusted=known.sent.adjusted)

    async def _buy(
        self, litellm: ModuleType, known: Known, prompt: Sequence[str | Image], system: str
    ) -> Completion:
        """The reply, through a batch where that is asked for."""
        if self._batch_dir is None or rehearsing.get():
            return await self._ask(litellm, known, prompt, system)
        ticket = await self._put(litellm, known, self._batch_dir, prompt, system)
        del prompt
        return await ticket.reply()

    def _everything(
        self, known: Known, prompt: Sequence[str | Image], system: str
    ) -> Mapping[str, object]:
        """All that can change a reply, and how often it was asked for before."""
        return {
            "vendor": known.provider,
            "server": self._server(known.provider),
            "model": known.name,
            "parameters": known.sent.values,
            "asked": self._parameters,  # another seed is meant to give another reply
            "system": system,
            "prompt": fingerprint(prompt),
            "repeat": repeat.get(),
        }

    async def forecast(self, prompt: Sequence[str | Image], /, system: str = "") -> Forecast:
        """What a call may cost at list or batch price; it is not made.

        Raises:
            CallError: It would be refused: see `request_limits`.
        """
        litellm = await asyncio.to_thread(client.load)
        known = self._look_up(litellm)
        self._request_limits.check(self._model, prompt, system)
        asked, reply = self._tokens(prompt, system), known.most_tokens
        if known.prices is None:
            return Forecast(1, asked, reply, None, None)
        of_prompt, of_reply = 1.0, 1.0
        if self._batch_dir is not None:
            of_prompt, of_reply = shares(litellm.model_cost, known.provider, known.name)
        dollars = asked * known.prices.prompt * of_prompt
        most = dollars + reply * known.prices.completion * of_reply
        return Forecast(1, asked, reply, dollars, most)

    async def _ask(
        self, litellm: ModuleType, known: Known, prompt: Sequence[str | Image], system: str
    ) -> Completion:
        """The reply, bought now."""
        key = self._key(litellm)
        pace = self._limiter(known.provider, key)
        pace.join(self, self._patience)
        guess = self._tokens(prompt, system) + known.most_tokens
        shared = self._shared(prompt, system)
        sender = Sender(litellm, self._model, known, self._timeout_s)
        from openeqa_lab.llm import bodies  # not at the top: imports httpx

        address = bodies.Address(self._model, known.provider, self._api_base, key, self._timeout_s)
        seen = any(isinstance(part, Image) for part in prompt)
        carrier = await bodies.client(litellm, address) if seen else None
        where = {"api_base": self._api_base, "api_key": key, "client": carrier}

        async def attempt() -> Completion:
            # Only now: what waits for its turn holds no copy of its pictures.
            with bodies.held() if carrier else nullcontext(as_base64) as text_of:
                marked = shared is not None and known.wants_marks
                sent = messages(prompt, system, marked=marked, text_of=text_of)
                return await sender.send({"messages": sent, **where, **known.sent.values})

        async with self._prefixes.turn(shared):
            return await ask(attempt, self._patience, pace, guess)

    def _tokens(self, prompt: Sequence[str | Image], system: str) -> int:
        """A guess at a prompt's tokens, before anybody has counted."""
        return tokens(prompt, system, self._request_limits.image_tokens)

    async def _put(
        self,
        litellm: ModuleType,
        known: Known,
        folder: Path,
        prompt: Sequence[str | Image],
        system: str,
    ) -> Ticket:
        """A place in a batch."""
        key = self._key(litellm)
        if key not in self._batches:
            sender = Sender(litellm, self._model, known, self._timeout_s)
            self._batches[key] = open_batches(sender, self._api_base, key, folder, self._patience)
        marked = known.wants_marks and self._shared(prompt, system) is not None
        settings = {"provider": known.provider, "model": known.name, **known.sent.values}
        content = await asyncio.to_thread(content_of, settings, prompt, system)
        return await self._batches[key].put(
            content, lambda: messages(prompt, system, marked=marked)
        )

    def _shared(self, prompt: Sequence[str | Image], system: str) -> str | None:
        """Names what the vendor's cache shall hold of a prompt, None for nothing."""
        if not self._prompt_cache or self._tokens(prompt, system) < SMALLEST_TOKENS:
            return None
        return shared_part(prompt, system)

    def _look_up(self, litellm: ModuleType) -> Known:
        """What litellm knows of the model; says once what is not sent as it was asked for."""
        if self._known is None:
            known = look_up(
                litellm, self._model, self._api_base, self._parameters, self._reasoning_tokens
            )
            if self._batch_dir is not None:
                check_batches(self._model, known.provider)
            for phrase in known.sent.adjusted:
                log.warning("%s: %s", self._model, phrase)
            self._known = known
        return self._known

    def _key(self, litellm: ModuleType) -> str | None:
        """The key to send; None lets litellm read the vendor's usual variable."""
        if self._api_key_env is None:
            if self._api_base is not None:
                return "none"
            found = litellm.validate_environment(self._model)["missing_keys"]
            missing = [variable for variable in found if variable.endswith("_API_KEY")]
            if missing:
                raise CallError(
                    f"{self._model} needs a key: set the environment variable "
                    f"{' or '.join(missing)}, or name another one with api_key_env",
                    kind="auth",
                )
            return None
        key = os.environ.get(self._api_key_env, "").strip()
        if not key:
            raise CallError(
                f"{self._model} needs a key: set the environment variable {self._api_key_env} "
                "(named by api_key_env)",
                kind="auth",
            )
        return key

    def _limiter(self, provider: str, key: str | None) -> Limiter:
        server, vendor = self._server(provider), provider.upper()
        key = first_set(*usual_variables(vendor)) if key is None else key
        return limiter(server, key)

    def _server(self, provider: str) -> str:
        """The address that is asked, the vendor's name for its own."""
        vendor = provider.upper()
        usual = first_set(f"{vendor}_API_BASE", f"{vendor}_BASE_URL")
        return self._api_base or usual or provider
