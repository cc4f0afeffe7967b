"""The settings of trying again, and of how fast an endpoint is asked."""

from __future__ import annotations

import random
from dataclasses import dataclass

from openeqa_lab.errors import OpenEQAError


@dataclass(frozen=True, slots=True)
class Patience:
    """How a call that failed in passing is tried again, and how fast an endpoint is asked.

    Args:
        attempts: Of one call at most.
        first_wait_s: The back-off is drawn from 0 to this many seconds, doubled after each attempt.
        longest_wait_s: Limit of one back-off; where a server asks for more, the call fails.
        requests_a_minute: None is no limit.
        tokens_a_minute: Of prompt and reply, estimated before sending; None is no limit.
        at_once: Requests under way at most; the lowest of an endpoint's clients holds, as it does
            of the two limits a minute.
    """

    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    requests_a_minute: int | None = None
    tokens_a_minute: int | None = None
    at_once: int = 32

    def __post_init__(self) -> None:
        for name in ("attempts", "at_once", "requests_a_minute", "tokens_a_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OpenEQAError(f"llm.patience.{name} is {value}: expected 1 or more")
        if not 0 < self.first_wait_s <= self.longest_wait_s:
            raise OpenEQAError(
                f"llm.patience.first_wait_s is {self.first_wait_s}: expected more than 0 seconds "
                f"and at most longest_wait_s = {self.longest_wait_s}"
            )

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """Seconds until the next attempt; clients that failed together come back apart.

        Args:
            attempt: That failed, from 1.
            asked_s: What the server asked for: never less than that.
        """
        if asked_s is not None:
            return asked_s + random.uniform(0, self.first_wait_s)  # noqa: S311
        doubled = self.first_wait_s * 2.0 ** min(attempt - 1, 60)
        return random.uniform(0, min(doubled, self.longest_wait_s))  # noqa: S311


PATIENT = Patience()
