"""Whether a file is still the one it was, told without reading it."""

from __future__ import annotations

import os
import time
from pathlib import Path

_AT_REST_NS = 3_000_000_000  # longer than a tick of any file system's clock; FAT's is 2 s


def file_stamp(path: Path) -> str | None:
    """Path, device, inode, size and times of a file, which a change of its bytes changes.

    Whatever writes to a file moves its inode's change time, which no program can set back. Two
    writes within one tick of the file system's clock could share it, so a file that changed in
    the last seconds has no stamp. (On Windows that time is the creation's, and a tool that puts
    the old modification time back would go unseen.)

    Returns:
        None when the file is not there or is not at rest.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _AT_REST_NS:
        return None
    numbers = (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip
    return " ".join([*map(str, numbers), os.fspath(path)])
