"""litellm, imported when first needed and closed with the event loop.

It takes seconds and 190 MB to import, so nothing but a first call does it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from types import ModuleType
from weakref import WeakKeyDictionary


def load() -> ModuleType:
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


async def close_with_loop(litellm: ModuleType) -> None:
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
            from openeqa_lab.llm import bodies

            await bodies.close()
            await litellm.close_litellm_async_clients()
            litellm.in_memory_llm_clients_cache.flush_cache()

    _guards[loop] = guard()
    await anext(_guards[loop])
