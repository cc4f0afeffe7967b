"""Keeps keys and passwords out of configs, which run files repeat."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from openeqa_lab.errors import OpenEQAError


def check_address(api_base: str) -> None:
    """Refuse what is no address, and one that holds a secret: run files keep addresses."""
    expected = "expected an address such as http://localhost:8000/v1"
    try:
        parts = urlsplit(api_base)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError as error:  # a port, an IPv6 address or a host's name that there cannot be
        raise OpenEQAError(f"llm.api_base is no address ({error}): {expected}") from None
    if "@" in parts.netloc or parts.query:
        raise OpenEQAError(
            "llm.api_base holds a password or a query (not shown), which would end up in run "
            "files: give the bare address, and the key in the variable that api_key_env names"
        )
    if not whole:
        raise OpenEQAError(f"llm.api_base is '{api_base}': {expected}")


def check_variable(api_key_env: str) -> None:
    """Refuse what is no name of an environment variable: it may be the key itself."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", api_key_env):
        raise OpenEQAError(
            "llm.api_key_env is no name of an environment variable (it is not shown, as it may "
            "be a key): keys are read from the environment and stand in no config"
        )


def usual_variables(vendor: str) -> Sequence[str]:
    """The variables that a vendor's key is looked for in."""
    google = ("GOOGLE_API_KEY",) if vendor == "GEMINI" else ()
    return (*google, f"{vendor}_API_KEY")


def first_set(*variables: str) -> str | None:
    """The value of the first of these environment variables that has one."""
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)
