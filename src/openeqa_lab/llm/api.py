"""Models behind an HTTP API, through litellm: the vendors, and servers that speak OpenAI's wire.

litellm takes seconds and 190 MB to import, so it is imported by the first call and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, CallKind, OpenEQAError
from openeqa_lab.llm import Completion, FinishReason, failures
from openeqa_lab.llm.content import messages, tokens
from openeqa_lab.llm.limits import Limiter, limiter
from openeqa_lab.llm.patience import PATIENT, Patience
from openeqa_lab.llm.retries import ask
from openeqa_lab.llm.secrets import check_address, check_variable, first_set, usual_variables
from openeqa_lab.records import Usage, whole_characters

log = logging.getLogger(__name__)

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
}
_OWN_SERVERS = frozenset({"hosted_vllm", "lm_studio", "llamafile", "openai_like", "custom_openai"})


class ApiModel:
    """A model that is asked over the network.

    Args:
        model: As litellm names it, ``vendor/model``; ``hosted_vllm/<name>`` or ``openai/<name>``
            with `api_base` for a server of one's own.
        temperature: None is not sent.
        max_tokens: Limit of the reply, hidden reasoning included; None is not sent.
        seed: None is not sent.
        api_base: Another server than the vendor's. A vendor's key is sent there only when
            `api_key_env` names it.
        api_key_env: The environment variable that holds the key; None is the vendor's usual one.
        timeout_s: Limit of one attempt in seconds, counted from sending.
        patience: How a call that failed in passing is tried again, and how fast the endpoint is
            asked.
    """

    def __init__(
        self,
        model: str,
        temperature: float | None = 0.2,
        max_tokens: int | None = 128,
        seed: int | None = 1234,
        api_base: str | None = None,
        api_key_env: str | None = None,
        timeout_s: float = 90.0,
        patience: Patience = PATIENT,
    ) -> None:
        if model.strip() in ("", "???"):
            raise OpenEQAError("llm.model is not set: name a model, such as openai/gpt-4o")
        if temperature is not None and not 0 <= temperature <= 2:
            raise OpenEQAError(f"llm.temperature is {temperature}: expected 0 to 2, or null")
        if max_tokens is not None and max_tokens < 1:
            raise OpenEQAError(f"llm.max_tokens is {max_tokens}: expected 1 or more, or null")
        if not timeout_s > 0:
            raise OpenEQAError(f"llm.timeout_s is {timeout_s}: expected more than 0 seconds")
        if api_base is not None:
            check_address(api_base)
        if api_key_env is not None:
            check_variable(api_key_env)
        self._model = model
        self._parameters: dict[str, object] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
        }
        self._max_tokens = max_tokens or 0
        self._api_base = api_base
        self._api_key_env = api_key_env
        self._timeout_s = timeout_s
        self._patience = patience
        self._supported: dict[str, object] | None = None
        self._priced = False
        self._provider = ""

    @property
    def identity(self) -> Mapping[str, object]:
        """Model and sampling parameters as asked for."""
        return {"name": "api", "model": self._model, **self._parameters}

    async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
        """The reply; texts and pictures are sent in the order given.

        Raises:
            CallError: The call failed; its `kind` says how.
        """
        litellm = await asyncio.to_thread(_litellm)
        if self._supported is None:
            self._supported = self._check(litellm)
        await _close_with_loop(litellm)
        key = self._key()
        limiter = self._limiter(key)
        limiter.join(self, self._patience)
        request: dict[str, object] = {
            "model": self._model,
            "messages": messages(prompt, system),
            "api_base": self._api_base,
            "api_key": key,
            "timeout": self._timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            **self._supported,
        }
        guess = tokens(prompt, system, self._max_tokens)
        return await ask(lambda: self._attempt(litellm, request), self._patience, limiter, guess)

    async def _attempt(self, litellm: ModuleType, request: Mapping[str, object]) -> Completion:
        started = time.perf_counter()
        try:
            response = await asyncio.wait_for(litellm.acompletion(**request), self._timeout_s)
        except asyncio.TimeoutError:
            usage = _unbilled("timeout", time.perf_counter() - started)
            found = f"no reply within {self._timeout_s:g} s"
            raise self._failure("timeout", found, usage) from None
        except litellm.exceptions.openai.OpenAIError as error:
            seconds = time.perf_counter() - started
            if failures.blocked(error):
                # Vendors differ in whether they charge for what they block.
                usage = Usage(1, dollars=None, seconds=seconds)
                return Completion("", "content_filter", usage=usage)
            kind = failures.kind(error)
            usage = _unbilled(kind, seconds)
            raise self._failure(kind, failures.describe(error), usage, error) from None
        return self._completion(response, time.perf_counter() - started)

    def _completion(self, response: Any, seconds: float) -> Completion:
        usage = _usage(response, seconds, self._priced)
        if not response.choices:
            raise self._failure("server", "the reply holds no choice", usage)
        choice = response.choices[0]
        refusal = getattr(choice.message, "refusal", None)
        text = whole_characters(choice.message.content or refusal or "")
        reason = _finish_reason(choice)
        if reason == "length" and not text.strip():
            limit = self._parameters["max_tokens"]
            found = f"the token limit (max_tokens={limit}) was spent before any text came"
            raise self._failure("truncated", found, usage)
        return Completion(text, reason, whole_characters(str(response.model or "")), usage)

    def _check(self, litellm: ModuleType) -> dict[str, object]:
        """The parameters this model takes; says which it does not, and whether a key is missing."""
        try:
            name, provider, _, _ = litellm.get_llm_provider(self._model, api_base=self._api_base)
        except litellm.BadRequestError:
            raise CallError(
                f"model '{self._model}' names no vendor that litellm knows: write vendor/model "
                "such as openai/gpt-4o, or hosted_vllm/<name> with api_base for your own server",
                kind="not_found",
            ) from None
        self._provider = str(provider)
        if provider in _OWN_SERVERS and not (
            self._api_base or os.environ.get(f"{provider.upper()}_API_BASE")
        ):
            # litellm would send the request to OpenAI.
            raise CallError(
                f"{self._model} has no server: set api_base to its address, such as "
                "http://localhost:8000/v1",
                kind="not_found",
            )
        if self._api_base is None and self._api_key_env is None:
            found = litellm.validate_environment(self._model)["missing_keys"]
            missing = [variable for variable in found if variable.endswith("_API_KEY")]
            if missing:
                raise CallError(
                    f"{self._model} needs a key: set the environment variable "
                    f"{' or '.join(missing)}, or name another one with api_key_env",
                    kind="auth",
                )
        self._priced = _priced(litellm.model_cost, provider, name)
        supported: dict[str, object] = {}
        for parameter, value in self._parameters.items():
            if value is None:
                continue
            try:
                litellm.utils.get_optional_params(
                    model=name, custom_llm_provider=provider, **{parameter: value}
                )
            except litellm.UnsupportedParamsError:
                log.warning(
                    "%s does not take %s=%s: it is not sent, the model's own default holds",
                    self._model, parameter, value,
                )  # fmt: skip
            else:
                supported[parameter] = value
        return supported

    def _key(self) -> str | None:
        """The key to send; None lets litellm read the vendor's usual variable."""
        if self._api_key_env is None:
            return None if self._api_base is None else "none"
        key = os.environ.get(self._api_key_env, "").strip()
        if not key:
            raise CallError(
                f"{self._model} needs a key: set the environment variable {self._api_key_env} "
                "(named by api_key_env)",
                kind="auth",
            )
        return key

    def _limiter(self, key: str | None) -> Limiter:
        vendor = self._provider.upper()
        server = first_set(f"{vendor}_API_BASE", f"{vendor}_BASE_URL") or self._provider
        key = first_set(*usual_variables(vendor)) if key is None else key
        return limiter(self._api_base or server, key)

    def _failure(
        self, kind: CallKind, found: str, usage: Usage, error: BaseException | None = None
    ) -> CallError:
        return CallError(
            f"{self._model}: {found} ({failures.REMEDIES[kind]})",
            kind=kind,
            usage=usage,
            retry_after_s=None if error is None else failures.retry_after_s(error),
            status=None if error is None else failures.http_status(error),
        )


def _litellm() -> ModuleType:
    """The quiet litellm, with the price list it ships instead of one from the network."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True  # else it prints advertisements to stdout
    litellm.telemetry = False
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    module: ModuleType = litellm
    return module


_guards: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = (
    WeakKeyDictionary()
)


async def _close_with_loop(litellm: ModuleType) -> None:
    """Have litellm's connections closed when the running loop ends.

    litellm closes them when the interpreter exits, on a loop they do not belong to. A loop that is
    ended properly (`asyncio.run` does) first finishes the asynchronous generators begun in it.
    """
    loop = asyncio.get_running_loop()
    if loop in _guards:
        return

    async def guard() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await litellm.close_litellm_async_clients()
            litellm.in_memory_llm_clients_cache.flush_cache()

    _guards[loop] = guard()
    await anext(_guards[loop])


def _finish_reason(choice: Any) -> FinishReason:
    extra = getattr(choice.message, "provider_specific_fields", None) or {}
    if getattr(choice.message, "refusal", None) or extra.get("stop_reason") == "refusal":
        return "refusal"
    return _FINISH_REASONS.get(choice.finish_reason, "other")


def _priced(prices: Mapping[str, Any], provider: str, name: str) -> bool:
    """Whether the price list knows this vendor's model; 0 is a price that nobody has entered."""
    entry = prices.get(f"{provider}/{name}") or prices.get(name) or {}
    own = str(entry.get("litellm_provider", "")).startswith(provider)
    return own and bool(entry.get("input_cost_per_token") or entry.get("output_cost_per_token"))


def _unbilled(kind: CallKind, seconds: float) -> Usage:
    """What a call without a reply cost: nothing if it was turned away, else nobody says."""
    turned_away = kind in ("auth", "not_found", "bad_request", "rate_limit")
    return Usage(1, dollars=0.0 if turned_away else None, seconds=seconds)


def _usage(response: Any, seconds: float, priced: bool) -> Usage:
    counted = getattr(response, "usage", None)
    prompt = getattr(counted, "prompt_tokens", 0) or 0
    completion = getattr(counted, "completion_tokens", 0) or 0
    # litellm also prices by the returned name, and own servers may return a vendor's.
    dollars = (response._hidden_params.get("response_cost") or None) if priced else None
    return Usage(1, prompt, completion, dollars, seconds)
