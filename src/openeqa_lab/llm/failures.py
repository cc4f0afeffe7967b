"""What an exception of litellm means: its kind, whether a filter blocked, and one clean line.

litellm names one fault differently from vendor to vendor (a body that is no JSON is an internal
error, a connection error or a bad request), so the cause that it wraps decides: the HTTP status
where there was a reply, else what broke.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from openeqa_lab.errors import CallKind

REMEDIES: Mapping[CallKind, str] = {
    "auth": "check the key, and that its account may use this model",
    "not_found": "check model and api_base",
    "bad_request": "the same request would be refused again: change it, or the model",
    "rate_limit": "lower concurrency, or start the same command again later",
    "timeout": "raise timeout_s, or send less",
    "connection": "check the network and api_base, then start the same command again",
    "server": "the fault is at the other end: start the same command again later",
    "truncated": "hidden reasoning counts too: raise max_tokens or reasoning_tokens",
    "empty": "start the same command again",
}

_BY_STATUS: Mapping[int, CallKind] = {
    401: "auth",
    402: "auth",
    403: "auth",
    404: "not_found",
    408: "timeout",
    409: "server",  # a lock that ran out; the vendors' own clients try again, too
    429: "rate_limit",
}
_BAD_KEY = re.compile(r"API_KEY_INVALID|API key (not valid|expired)", re.IGNORECASE)
# A 429 that no waiting helps.
_NO_MONEY = re.compile(r"insufficient_quota|credit balance is too low", re.IGNORECASE)
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')  # Google's RetryInfo
_BLOCKED_CODES = ("content_filter", "content_policy_violation")
_BLOCKED = re.compile(
    r"content[_ ]filter|content[_ ]policy|content management policy|ResponsibleAIPolicyViolation"
    r"|flagged as potentially violating",  # OpenAI's word for a prompt to a model that reasons
    re.IGNORECASE,
)
# A 403 that is about the prompt, not the key: OpenRouter's moderation, and xAI's.
_MODERATED = re.compile(
    r"requires moderation|flagged_input|input was flagged|SAFETY_CHECK_TYPE"
    r"|violates usage guidelines",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|AIza|ya29)[-_.A-Za-z0-9*]{12,}"
    r"|(?<=[?&]key=)[^&\s'\"]+|(?<=Bearer )[^\s'\"]+"
)
# What litellm puts around a vendor's message.
_PREFIX = re.compile(r"^(litellm\.)?\w*( ?Error|Exception|Timeout)\s*[:-]\s*")
_TAIL = re.compile(
    r"\s*(Traceback \(most recent|\. Handle with `|\. File an issue if).*", re.DOTALL
)


def kind(error: BaseException) -> CallKind:
    """The kind of a failed call."""
    status = http_status(error)
    links = list(_chain(error))
    if status is not None:
        if status == 400 and any(_BAD_KEY.search(str(link)) for link in links):
            return "auth"
        if status in (400, 429) and any(
            getattr(link, "code", None) == "insufficient_quota" or _NO_MONEY.search(str(link))
            for link in links
        ):
            return "auth"
        fallback: CallKind = "bad_request" if 400 <= status < 500 else "server"
        return _BY_STATUS.get(status, fallback)
    names = {name for link in links for name in _class_names(link)}
    if any(name.endswith("Timeout") or name == "TimeoutError" for name in names):
        return "timeout"
    # ValueError: a reply that is no JSON. Transport errors are httpx's and aiohttp's.
    if "ValueError" not in names and names & {"TransportError", "ClientError", "OSError"}:
        return "connection"
    # What litellm refuses before it sends anything carries a made-up status.
    if getattr(error, "status_code", None) == 400:
        return "bad_request"
    return "server"


def blocked(error: BaseException) -> bool:
    """Whether a vendor's filter refused the prompt or the reply."""
    if "ContentPolicyViolationError" in _class_names(error):
        return True
    status = http_status(error)
    if status == 403:
        return any(_MODERATED.search(str(link)) for link in _chain(error))
    return status == 400 and any(
        getattr(link, "code", None) in _BLOCKED_CODES or _BLOCKED.search(str(link))
        for link in _chain(error)
    )


def http_status(error: BaseException) -> int | None:
    """The status of the reply that this error was made from, None when there was no reply."""
    for link in _chain(error):
        if "HTTPStatusError" in _class_names(link):
            status: int = link.response.status_code  # type: ignore[attr-defined]
            return status
    return None


def retry_after_s(error: BaseException) -> float | None:
    """How long the server asked to be left alone, in seconds, None when it said nothing of it."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        for headers in (
            getattr(link, "litellm_response_headers", None),
            getattr(response, "headers", None),
        ):
            if isinstance(headers, Mapping) and (wait := _wait_in(headers)) is not None:
                return wait
    for link in _chain(error):
        if delay := _RETRY_DELAY.search(str(link)):
            return float(delay[1])
    return None


def _wait_in(headers: Mapping[str, str]) -> float | None:
    named = {name.lower().removeprefix("llm_provider-"): headers[name] for name in headers}
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = str(named.get(name, "")).strip()
        try:
            wait = float(text) * unit
        except ValueError:
            continue
        if math.isfinite(wait):
            return max(0.0, wait)
    try:
        moment = parsedate_to_datetime(str(named.get("retry-after", "")))
    except ValueError:
        return None
    if moment.tzinfo is None:  # an HTTP date is in GMT
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, (moment - datetime.now(timezone.utc)).total_seconds())


def describe(error: BaseException, limit: int = 300) -> str:
    """What the vendor said, in one line, without keys."""
    text = str(error)
    while prefix := _PREFIX.match(text):
        text = text[prefix.end() :]
    text = " ".join(without_secrets(_said(_TAIL.sub("", text))).split())
    status = http_status(error)
    line = f"HTTP {status}: {text}" if status else text
    return line if len(line) <= limit else line[: limit - 1] + "…"


def without_secrets(text: str) -> str:
    """The text without keys: a vendor's error message may echo one."""
    for name, value in os.environ.items():
        secret = value.strip()
        if name.upper().endswith(("KEY", "TOKEN", "SECRET")) and len(secret) >= 8:
            text = text.replace(secret, "***")
    return _SECRET.sub("***", text)


def _said(text: str) -> str:
    """The message within a vendor's JSON, or the text as it is."""
    try:
        body: Any = json.loads(text[text.index("{") :])
        message = body["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return text
    return message if isinstance(message, str) else text


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _class_names(error: BaseException) -> set[str]:
    """Names instead of classes: importing those costs seconds."""
    return {base.__name__ for base in type(error).__mro__}
