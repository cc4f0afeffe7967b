"""What can be foreseen to go wrong; each message says what, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from openeqa_lab.records import Attempt, Usage

CallKind = Literal[
    "auth",  # wrong, missing or forbidden key
    "not_found",  # no such model or endpoint
    "bad_request",  # the request itself is refused; sending it again cannot help
    "rate_limit",
    "timeout",
    "connection",
    "server",  # 5xx, overload, malformed body
    "truncated",  # our token limit was spent before any text came
    "empty",  # a judge that said nothing (an answer that says nothing is an answer)
]


class OpenEQAError(Exception):
    """A foreseen error: the command ends with its one line and a non-zero exit code."""


class CaseError(OpenEQAError):
    """One case cannot go on; the others do. Becomes a `Failure`, never a score.

    Args:
        message: What was found, where, and what to do.
        kind: A short word that the report counts failures by.
        raw: What the model or judge said, where it said something that could not be used.
        usage: What was paid all the same, None for nothing.

    Attributes:
        attempts: Calls that failed in passing before the one that is told of.
    """

    def __init__(
        self, message: str, *, kind: str, raw: str = "", usage: Usage | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.raw = raw
        self.usage = usage
        self.attempts: tuple[Attempt, ...] = ()


class FrameError(CaseError):
    """An episode or one of its frames is missing or cannot be read; the message names the path."""

    def __init__(self, message: str, *, kind: str = "frame_unreadable") -> None:
        super().__init__(message, kind=kind)


class CallError(CaseError):
    """A call to a model failed. `auth` and `not_found` end the run: every call would fail alike.

    Args:
        message: What was found, where, and what to do.
        kind: What failed.
        raw: What the model said that could not be used.
        usage: What was paid all the same, None for nothing.
        retry_after_s: How long the server asked to be left alone, in seconds.
        status: Of the HTTP reply, None when there was none.
        found: What was found, without model and remedy; the message by default.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: CallKind,
        raw: str = "",
        usage: Usage | None = None,
        retry_after_s: float | None = None,
        status: int | None = None,
        found: str = "",
    ) -> None:
        super().__init__(message, kind=kind, raw=raw, usage=usage)
        self.kind: CallKind = kind
        self.retry_after_s = retry_after_s
        self.status = status
        self.found = found or message

    @property
    def fatal(self) -> bool:
        """Whether all further calls of this run would fail for the same reason."""
        return self.kind in ("auth", "not_found")


class UnparsedError(CaseError):
    """A judge's reply from which no mark can be read; `raw` holds the reply."""

    def __init__(self, message: str, *, raw: str, usage: Usage | None = None) -> None:
        super().__init__(message, kind="unparsed", raw=raw, usage=usage)
