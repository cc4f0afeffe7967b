"""Which model a name means: a folder by its content, a model of a hub by its commit."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from openeqa_lab.errors import OpenEQAError

# What transformers reads of a folder; a trainer's states, which may be larger, are left out.
_READ = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja", ".py")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that is told apart from all others.

    Args:
        source: What transformers loads: a folder's path, or ``owner/name``.
        name: The folder's own name, or ``owner/name``.
        version: The hub's commit, or the SHA-256 of what the folder holds.
    """

    source: str
    name: str
    version: str

    @property
    def commit(self) -> str | None:
        """The commit to load from the hub, None for a folder."""
        return self.version if self.source == self.name else None


def find(model: str, revision: str | None) -> Checkpoint:
    """The checkpoint of a folder, or of the hub, where its configuration is looked up.

    Raises:
        OpenEQAError: There is none.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise OpenEQAError(
                f"llm.revision is {revision}, and {model} is a folder, which has none: null it"
            )
        folder = folder.absolute()
        return Checkpoint(str(folder), folder.name, _digest(folder))
    if model.startswith((".", "~", "/")) or model.count("/") > 1:
        raise OpenEQAError(
            f"llm.model is {model}: there is no such folder (owner/name is a model of the hub)"
        )
    return Checkpoint(model, model, _commit(model, revision))


def _digest(folder: Path) -> str:
    """Of names and contents: seconds for each ten gigabytes, and no two models alike."""
    if not (folder / "config.json").is_file():
        raise OpenEQAError(
            f"{folder} holds no config.json: llm.model must be a folder that transformers saved, "
            "or a model of the hub, owner/name"
        )
    digest = sha256()
    templates = (folder / "additional_chat_templates").glob("*.jinja")
    for path in sorted([*folder.iterdir(), *templates]):
        if path.suffix not in _READ or not path.is_file():
            continue
        content = sha256()
        try:
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    content.update(piece)
        except OSError as error:
            raise OpenEQAError(f"Cannot read {path}: {error.strerror}") from None
        digest.update(f"{path.name}\0{content.hexdigest()}\n".encode())
    return digest.hexdigest()


def _commit(model: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = model if revision is None else f"{model} at revision {revision}"
    try:
        path = hf_hub_download(model, "config.json", revision=revision)
    except LocalEntryNotFoundError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        found = f"is not on this machine and cannot be downloaded ({reason})"
        remedy = "bring it into the cache with a network at hand, or name a folder that holds it"
    except GatedRepoError:
        found = "is gated: its owner grants access"
        remedy = "accept its terms on its page, and set the environment variable HF_TOKEN"
    except RepositoryNotFoundError:
        found = "is no model of the hub that may be seen"
        remedy = "check the name; for a private one set the environment variable HF_TOKEN"
    except RevisionNotFoundError:
        found, remedy = "does not exist", "check llm.revision: a branch, a tag or a commit"
    except EntryNotFoundError:
        found = "holds no config.json, so it is no model for transformers"
        remedy = "choose another (files in GGUF alone are served by llama.cpp)"
    except HFValidationError as error:
        found, remedy = f"is no name: {error}", "write owner/name, or a folder's path"
    except OSError as error:
        found = f"cannot be looked up ({' '.join(str(error).split())})"
        remedy = "start the same command again, or name a folder that holds it"
    else:
        return Path(path).parent.name  # the cache names a snapshot's folder by its commit
    raise OpenEQAError(f"{wanted} {found}: {remedy}")
