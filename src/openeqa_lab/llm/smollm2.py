"""SmolLM2-135M-Instruct on this machine's processor: a real language model that needs no key.

llama.cpp runs it in this process, through the package xllamacpp.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import Completion, FinishReason, Forecast, repeat
from openeqa_lab.llm.content import messages, tokens
from openeqa_lab.records import Usage, whole_characters

MODEL = "SmolLM2-135M-Instruct-Q4_1"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192  # what the model was trained for

_FETCH = "python -m openeqa_lab.fetch smollm2"
_FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}


class SmolLM2:
    """A language model of 135 million parameters, at four bits each; it reads text alone.

    Replies are made one after the other, with nothing kept between them: what llama.cpp keeps of
    one prompt for the next changes the numbers, and so would make a reply depend on what was asked
    before it. Sampling is plain: temperature alone, from all tokens.

    Args:
        weights: The GGUF file that `python -m openeqa_lab.fetch smollm2` installs.
        temperature: 0 takes the likeliest token.
        max_tokens: Limit of the reply.
        seed: Of the draws; how often a question was asked before in the same place is added.
        context_tokens: Prompt and reply together, up to 8192; memory grows with it.
        threads: Processor threads; replies do not depend on them.
        grammar: A GBNF grammar that every reply keeps to; None for free text.

    Raises:
        OpenEQAError: A knob is out of range, or xllamacpp or the weights are not installed.
    """

    def __init__(
        self,
        weights: str,
        temperature: float = 0.0,
        max_tokens: int = 128,
        seed: int = 1234,
        context_tokens: int = 4096,
        threads: int = 1,
        grammar: str | None = None,
    ) -> None:
        if not 0 <= temperature <= 2:
            raise OpenEQAError(f"llm.temperature is {temperature}: expected 0 to 2")
        if not 0 <= seed < 2**31:
            raise OpenEQAError(f"llm.seed is {seed}: expected 0 to {2**31 - 1}")
        if threads < 1:
            raise OpenEQAError(f"llm.threads is {threads}: expected 1 or more")
        if grammar is not None and not grammar.strip():
            raise OpenEQAError("llm.grammar is empty: expected GBNF, or null for free text")
        if not 1 <= max_tokens < context_tokens <= CONTEXT_TOKENS:
            raise OpenEQAError(
                f"llm.max_tokens is {max_tokens} and llm.context_tokens {context_tokens}: expected "
                f"1 or more of the first, more of the second, and {CONTEXT_TOKENS} at most"
            )
        if find_spec("xllamacpp") is None:
            raise OpenEQAError(
                "the model smollm2 needs the package xllamacpp, which is not installed: "
                f"pip install 'openeqa-lab[local]', and then {_FETCH}"
            )
        path = Path(weights).absolute()
        if not path.is_file():
            raise OpenEQAError(f"the model smollm2 is not installed, there is no {path}: {_FETCH}")
        self._parameters: dict[str, object] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "grammar": grammar,
        }
        self._max_tokens, self._seed = max_tokens, seed
        self._request: dict[str, object] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": 0,  # llama.cpp's own defaults narrow the choice
            "top_p": 1.0,
            "min_p": 0.0,
        }
        if grammar is not None:
            self._request["grammar"] = grammar
        key = (path, context_tokens, threads)
        with _lock:
            engine = _engines.get(key)
            if engine is None:
                _engines[key] = engine = _Engine(*key)
            self._engine = engine

    @property
    def identity(self) -> Mapping[str, object]:
        """The weights by their hash, and the parameters that can change a reply."""
        return {"name": "smollm2", "model": MODEL, "sha256": SHA256, **self._parameters}

    async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
        """The reply to texts.

        Raises:
            CallError: ``bad_request`` for pictures, and for more tokens than the context holds.
            OpenEQAError: The weights are not the right ones, or the grammar is no grammar.
        """
        request = {
            **self._request,
            "messages": messages(_texts(prompt), whole_characters(system)),
            "seed": (self._seed + repeat.get()) % 2**31,
        }
        # A reply that nobody waits for any more is not begun.
        reply, seconds = await asyncio.wrap_future(self._engine.submit(request))
        if "error" in reply:
            raise self._failure(reply["error"], seconds)
        return self._completion(reply, seconds)

    async def forecast(self, prompt: Sequence[str | Image], /, system: str = "") -> Forecast:
        """That a call is free.

        Raises:
            CallError: It would be refused for its pictures.
        """
        asked = tokens(_texts(prompt), system, lambda _: 0)
        return Forecast(1, asked, self._max_tokens)

    def _completion(self, reply: Any, seconds: float) -> Completion:
        counts, choice = reply["usage"], reply["choices"][0]
        written = counts["completion_tokens"]
        kept = counts["prompt_tokens_details"]["cached_tokens"]
        usage = Usage(1, counts["prompt_tokens"], written, 0.0, seconds, cached_tokens=kept)
        reason = _FINISH_REASONS.get(choice["finish_reason"], "other")
        text = whole_characters(choice["message"]["content"] or "")
        if reason == "length" and written < self._max_tokens:
            raise CallError(
                f"{MODEL}: the context was full after a prompt of {usage.prompt_tokens} tokens and "
                f"{written} of the reply (raise llm.context_tokens, or shorten the prompt)",
                kind="bad_request",
                raw=text,
                usage=usage,
            )
        if reason == "length" and not text.strip():
            raise CallError(
                f"{MODEL}: the token limit (max_tokens={self._max_tokens}) was spent before any "
                "text came (raise llm.max_tokens)",
                kind="truncated",
                usage=usage,
            )
        return Completion(text, reason, MODEL, usage)

    def _failure(self, error: Any, seconds: float) -> OpenEQAError:
        if error["type"] == "exceed_context_size_error":
            return CallError(
                f"{MODEL}: a prompt of {error['n_prompt_tokens']} tokens, and the context holds "
                f"{error['n_ctx']} (raise llm.context_tokens, or shorten the prompt)",
                kind="bad_request",
            )
        if "grammar" in error["message"]:
            return OpenEQAError(
                f"llm.grammar is no GBNF grammar that llama.cpp can read: "
                f"{self._parameters['grammar']!r} ({error['message']})"
            )
        return CallError(
            f"{MODEL}: {error['message']}", kind="server", usage=Usage(1, seconds=seconds)
        )


class _Engine:
    """The model in memory, loaded by the first reply and shared by all that use it."""

    def __init__(self, weights: Path, context_tokens: int, threads: int) -> None:
        self._weights = weights
        self._context_tokens = context_tokens
        self._threads = threads
        # One thread, which waits for its turn as long as it takes, and ends with the interpreter.
        self._executor = ThreadPoolExecutor(1, "smollm2")

    def submit(self, request: Mapping[str, object]) -> Any:
        """The future of a reply in OpenAI's shape, and the seconds it took."""
        return self._executor.submit(self._reply, request)

    def _reply(self, request: Mapping[str, object]) -> tuple[Any, float]:
        server = self._server
        started = time.perf_counter()
        return server.handle_chat_completions(request), time.perf_counter() - started

    @cached_property
    def _server(self) -> Any:
        import xllamacpp

        _check(self._weights)
        settings = xllamacpp.CommonParams()
        settings.model.path = str(self._weights)
        settings.n_ctx = self._context_tokens
        settings.n_parallel = 1
        settings.cache_prompt = False
        settings.cache_ram_mib = 0
        settings.cpuparams.n_threads = self._threads
        settings.cpuparams_batch.n_threads = self._threads
        settings.verbosity = -1
        settings.warmup = False
        # It listens on loopback too, which nobody here uses: nobody else shall.
        settings.api_keys = [secrets.token_hex()]
        settings.n_threads_http = 1
        settings.ui = settings.endpoint_slots = settings.endpoint_props = False
        try:
            return xllamacpp.Server(settings)
        except RuntimeError as error:
            raise OpenEQAError(
                f"llama.cpp could not load {self._weights}: {error} (its context of "
                f"{self._context_tokens} tokens needs memory too: lower llm.context_tokens)"
            ) from None


def _texts(prompt: Sequence[str | Image]) -> list[str]:
    texts = [whole_characters(part) for part in prompt if isinstance(part, str)]
    if pictures := len(prompt) - len(texts):
        raise CallError(
            f"{MODEL} reads text alone, and was sent {pictures} pictures: choose a reasoner that "
            "is blind (reasoner=blind), or a model that sees",
            kind="bad_request",
        )
    return texts


_lock = Lock()
_engines: WeakValueDictionary[tuple[Path, int, int], _Engine] = WeakValueDictionary()


def _check(weights: Path) -> None:
    """Refuse other weights than the ones that the identity names."""
    digest = sha256()
    try:
        with weights.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise OpenEQAError(f"Cannot read {weights}: {error.strerror}; {_FETCH}") from None
    if digest.hexdigest() != SHA256:
        raise OpenEQAError(
            f"{weights} is not {MODEL}: sha256 {digest.hexdigest()}, expected {SHA256}; "
            f"{_FETCH} --force replaces it"
        )
