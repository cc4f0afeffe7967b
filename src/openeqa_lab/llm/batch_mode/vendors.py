"""Which vendors have a batch endpoint that is known here, and where it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm.attempt import Sender
from openeqa_lab.llm.batch_mode.anthropic import Anthropic
from openeqa_lab.llm.batch_mode.batches import Batches
from openeqa_lab.llm.batch_mode.files import Folder
from openeqa_lab.llm.batch_mode.http import Http
from openeqa_lab.llm.batch_mode.openai_shaped import OpenAIShaped
from openeqa_lab.llm.batch_mode.state import Server
from openeqa_lab.llm.batch_mode.wire import Wire
from openeqa_lab.llm.patience import Patience
from openeqa_lab.llm.secrets import first_set, usual_variables

_PROVIDERS = ("openai", "anthropic", "hosted_vllm")


def check_batches(model: str, provider: str) -> None:
    """Refuse a model whose vendor has no batch endpoint that is known here.

    Raises:
        OpenEQAError: Before anything is paid.
    """
    if provider not in _PROVIDERS:
        raise OpenEQAError(
            f"llm.batch is true, and {model} is {provider}'s: batches can be sent to OpenAI and "
            "Anthropic, and to any server with OpenAI's batch endpoint as openai/<name> with "
            "api_base. Set batch=false, or take another model"
        )


def open_batches(
    sender: Sender, api_base: str | None, key: str | None, folder: Path, patience: Patience
) -> Batches:
    """The batches of a model.

    Args:
        sender: Of the model.
        api_base: As of an `ApiModel`.
        key: None is the vendor's usual one.
        folder: Where they are remembered.
        patience: How a call that failed in passing is tried again.
    """
    provider = sender.known.provider
    key = key or first_set(*usual_variables(provider.upper())) or "none"
    wire, address = _wire(sender, api_base, key)
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    server = Server(provider, address, sender.known.name, digest)
    return Batches(Folder(folder, server), wire, patience)


def _wire(sender: Sender, api_base: str | None, key: str) -> tuple[Wire, str]:
    """The endpoint and its address, found as litellm finds that of an ordinary call."""
    if sender.known.provider == "anthropic":
        set_by = first_set("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL")
        address = (api_base or set_by or "https://api.anthropic.com").rstrip("/")
        address = address.removesuffix("/v1/messages").removesuffix("/v1")
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        return Anthropic(sender, Http(sender, address, headers)), address
    headers = {"authorization": f"Bearer {key}"}
    if sender.known.provider == "openai":
        set_by = first_set("OPENAI_BASE_URL", "OPENAI_API_BASE")
        address = api_base or set_by or "https://api.openai.com/v1"
        organization = first_set("OPENAI_ORGANIZATION", "OPENAI_ORG_ID")
        project = first_set("OPENAI_PROJECT_ID")
        if api_base is None and organization:
            headers["openai-organization"] = organization
        if api_base is None and project:
            headers["openai-project"] = project
    else:
        address = api_base or first_set("HOSTED_VLLM_API_BASE") or ""
    address = address.rstrip("/")
    return OpenAIShaped(sender, Http(sender, address, headers)), address
