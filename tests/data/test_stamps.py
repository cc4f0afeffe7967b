from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from openeqa_lab.data.episode import Stamped
from openeqa_lab.data.layouts import FolderSource
from openeqa_lab.data.stamps import file_stamp

# A file's change time cannot be set, so these tests move the clock.
NOW = time.time_ns


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that has been written is at rest."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW() + 10_000_000_000)


@pytest.mark.usefixtures("later")
def test_a_file_at_rest_keeps_its_stamp(tmp_path: Path) -> None:
    path = tmp_path / "0.png"
    path.write_bytes(b"picture")
    first = file_stamp(path)
    assert first is not None
    path.read_bytes()
    assert file_stamp(path) == first


def test_a_file_that_changed_just_now_has_none(tmp_path: Path) -> None:
    path = tmp_path / "0.png"
    path.write_bytes(b"picture")
    assert file_stamp(path) is None


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("change", ["write", "same_size", "replace", "touch", "mode"])
def test_whatever_touches_a_file_changes_its_stamp(tmp_path: Path, change: str) -> None:
    path, times = tmp_path / "0.png", (1_700_000_000, 1_700_000_000)
    path.write_bytes(b"picture")
    os.utime(path, times)
    first = file_stamp(path)
    time.sleep(0.02)  # a tick of the file system's clock
    if change == "write":
        path.write_bytes(b"picture of another size")
    elif change == "same_size":
        path.write_bytes(b"PICTURE")
        os.utime(path, times)  # what a careful copy does
    elif change == "replace":
        (tmp_path / "new.png").write_bytes(b"PICTURE")
        os.utime(tmp_path / "new.png", times)
        (tmp_path / "new.png").replace(path)
    elif change == "touch":
        path.touch()
    else:
        path.chmod(0o600)
    assert first is not None
    assert file_stamp(path) != first


@pytest.mark.usefixtures("later")
def test_two_files_have_two_stamps(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(b"picture")
    shutil.copy2(tmp_path / "0.png", tmp_path / "1.png")
    assert file_stamp(tmp_path / "0.png") != file_stamp(tmp_path / "1.png")


def test_what_is_not_there_has_none(tmp_path: Path) -> None:
    assert file_stamp(tmp_path / "0.png") is None


@pytest.mark.usefixtures("later")
def test_a_folder_stamps_its_frames_and_takes_their_digests_over(tmp_path: Path) -> None:
    for name in ("0.png", "1.png"):
        (tmp_path / name).write_bytes(name.encode())
    source = FolderSource(tmp_path, "room", ["0.png", "1.png"])
    assert isinstance(source, Stamped)
    assert source.stamp(0) == file_stamp(tmp_path / "0.png")
    assert source.stamp(0) != source.stamp(1)
    assert source.sha256(1) is None
    source.remember(1, "ab" * 32)
    assert source.sha256(1) == "ab" * 32
    source.read([1])
    assert source.sha256(1) != "ab" * 32  # what was read counts
