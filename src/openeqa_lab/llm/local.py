"""Models of transformers, run in this process: chat models that see, and chat models of text alone.

torch and transformers take seconds to import, so the first call does, and nobody else.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from openeqa_lab.data.episode import Image
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import Completion, Forecast, repeat
from openeqa_lab.llm.batches import Batches
from openeqa_lab.llm.checkpoints import Checkpoint, find
from openeqa_lab.llm.content import tokens
from openeqa_lab.llm.generation import Request
from openeqa_lab.llm.loading import Dtype, Loader
from openeqa_lab.records import whole_characters

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_PICTURE_TOKENS = 256  # of 64 to some thousands, by model and size


class LocalModel:
    """A chat model that transformers runs on this machine.

    Calls that wait together are run as one batch. A reply does not depend on what is in the batch
    beside it, but for rounding: draws have a generator a request. Sampling is plain, temperature
    alone, whatever the model's own generation settings say.

    Args:
        model: A folder that transformers saved, or a model of the hub, ``owner/name``.
        revision: Branch, tag or commit of the hub; None is its main branch. What it stands for at
            the start is the run's, and is in its identity.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``; ``auto`` takes the best that is there.
        dtype: Of the weights; ``auto`` is what they were saved in.
        temperature: 0 takes the likeliest token.
        max_tokens: Limit of the reply.
        seed: Of the draws; how often a question was asked before in the same place is added. None
            draws anew each time.
        batch_size: Calls run together at most; halved when the device runs out of memory.
        attention: transformers' name of an implementation; None leaves the choice to it.
        trust_remote_code: Run Python code that comes with the model.

    Raises:
        OpenEQAError: A knob is out of range, or transformers is not installed.
    """

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        device: str = "auto",
        dtype: Dtype = "auto",
        temperature: float = 0.0,
        max_tokens: int = 128,
        seed: int | None = 1234,
        batch_size: int = 4,
        attention: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if model.strip() in ("", "???"):
            raise OpenEQAError("llm.model is not set: name a folder, or a model of the hub")
        if not 0 <= temperature <= 2:
            raise OpenEQAError(f"llm.temperature is {temperature}: expected 0 to 2")
        if seed is not None and seed < 0:
            raise OpenEQAError(f"llm.seed is {seed}: expected 0 or more, or null")
        for name, value in (("max_tokens", max_tokens), ("batch_size", batch_size)):
            if value < 1:
                raise OpenEQAError(f"llm.{name} is {value}: expected 1 or more")
        if find_spec("transformers") is None:
            raise OpenEQAError(
                "the model local needs the package transformers, which is not installed: "
                "pip install 'openeqa-lab[local]'"
            )
        self._model, self._revision = model, revision
        self._device, self._dtype, self._attention = device, dtype, attention
        self._trusted = trust_remote_code
        self._temperature, self._max_tokens, self._seed = temperature, max_tokens, seed
        self._batch_size = batch_size
        self._found: Checkpoint | None = None
        self._batches: Batches | None = None
        self._lock = Lock()

    @property
    def identity(self) -> Mapping[str, object]:
        """The model by its commit or its content, and the parameters that can change a reply.

        Raises:
            OpenEQAError: There is no such model.
        """
        checkpoint = self._checkpoint()
        return {
            "name": "local",
            "model": checkpoint.name,
            "version": checkpoint.version,
            "dtype": self._dtype,
            "temperature": self._temperature,
            "max_tokens": self._max_tokens,
            "seed": self._seed,
            "trust_remote_code": self._trusted,
        }

    async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
        """The reply to texts and pictures in the order given.

        Raises:
            CallError: ``bad_request`` for pictures that the model cannot see, for more tokens than
                it can read, and where the device has too little memory for this request alone.
            OpenEQAError: The model cannot be loaded.
        """
        parts = await asyncio.to_thread(_opened, prompt)
        seed = random.getrandbits(32) if self._seed is None else self._seed + repeat.get()
        request = Request(
            parts, whole_characters(system), self._temperature, self._max_tokens, seed
        )
        batches = await asyncio.to_thread(self._loaded_once)
        return await batches.complete(request)

    async def forecast(self, prompt: Sequence[str | Image], /, system: str = "") -> Forecast:
        """That a call is free; its tokens are a guess, since only the loaded model can count."""
        asked = tokens(prompt, system, lambda _: _PICTURE_TOKENS)
        return Forecast(1, asked, self._max_tokens)

    def _checkpoint(self) -> Checkpoint:
        with self._lock:
            if self._found is None:
                self._found = find(self._model, self._revision)
            return self._found

    def _loaded_once(self) -> Batches:
        """The one model in memory of all that ask for the same: a reasoner and a judge, say."""
        how = (self._device, self._dtype, self._attention, self._trusted)
        key = (self._checkpoint(), *how, self._batch_size)
        with _lock:
            if self._batches is None:
                self._batches = _shared.get(key)
            if self._batches is None:
                self._batches = Batches(Loader(self._checkpoint(), *how), self._batch_size)
                _shared[key] = self._batches
            return self._batches


_lock = Lock()
_shared: WeakValueDictionary[tuple[object, ...], Batches] = WeakValueDictionary()


def _opened(prompt: Sequence[str | Image]) -> tuple[str | Picture, ...]:
    return tuple(
        whole_characters(part) if isinstance(part, str) else _decoded(part, place, len(prompt))
        for place, part in enumerate(prompt, start=1)
    )


def _decoded(image: Image, place: int, count: int) -> Picture:
    from PIL import Image as Pictures

    try:
        with Pictures.open(io.BytesIO(image.data)) as picture:
            colors: Picture = picture.convert("RGB")
            return colors
    except (OSError, ValueError, SyntaxError) as error:
        raise CallError(
            f"part {place} of {count} of the prompt ({image.media_type}, {len(image.data)} bytes) "
            f"is no picture that Pillow can open: {error}",
            kind="bad_request",
        ) from None
