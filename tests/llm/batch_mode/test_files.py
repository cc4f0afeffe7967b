"""What is kept on disk of batches: whole after anything, its owner's only, and no secret in it."""

from __future__ import annotations

import json
import resource
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from openeqa_lab.errors import OpenEQAError
from openeqa_lab.llm.batch_mode.files import KEPT_S, Folder, results_in
from openeqa_lab.llm.batch_mode.state import Batch, Server

SERVER = Server("openai", "https://api.example/v1", "gpt-4o", "0123456789abcdef")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "cache" / "batches", SERVER)


def test_a_batch_is_remembered_through_all_its_states(folder: Folder) -> None:
    assert folder.batches() == []
    spool = folder.new()
    assert [batch.state for batch in folder.batches()] == ["spooled"]
    spool.add("one", b'{"custom_id":"one"}\n')
    spool.add("two", b'{"custom_id":"two"}\n')
    sending = spool.close()
    assert folder.batches() == [sending]
    assert (sending.state, sending.ids) == ("sending", ("one", "two"))
    assert folder.requests(sending).read_bytes().count(b"\n") == 2
    sent = folder.write(replace(sending, state="sent", batch_id="batch_1"))
    folder.drop_requests(sent)
    assert folder.batch_ids() == {"batch_1"}
    with folder.collecting(sent) as file:
        file.write(b'\n{"custom_id":"two"}\n{"custom_id":"one"}')
    collected = folder.write(replace(sent, state="collected"))
    assert folder.again(collected) == folder.batches()[0] == collected
    assert list(results_in(folder.results(collected))) == ["two", "one"]
    folder.remove(collected)
    spool.lock.release()
    assert folder.again(collected) is None
    assert list(folder.path.iterdir()) == []


def test_all_files_are_their_owners_only(folder: Folder) -> None:
    spool = folder.new()
    batch = spool.close()
    with folder.collecting(batch) as file:
        file.write(b"{}")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    assert len(list(folder.path.iterdir())) == 4  # state, lock, requests, results
    assert modes == {0o600}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    spool.lock.release()


def test_batches_of_other_servers_models_and_keys_are_left_alone(folder: Folder) -> None:
    for change in ({"provider": "anthropic"}, {"address": "x"}, {"model": "y"}, {"key": "z"}):
        other = Folder(folder.path, replace(SERVER, **change))
        batch = other.write(replace(other.new().close(), state="sent", batch_id=str(change)))
        assert other.batches() == [batch]
    assert folder.batches() == []
    assert len(folder.batch_ids()) == 4


DAMAGED = {
    "nothing": b"",
    "no JSON": b'{"format": 1,',
    "no object": b"[1]",
    "of another version": b'{"format": 2}',
    "without fields": b'{"format": 1}',
    "no UTF-8": b"\xff",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named_instead_of_buying_its_batch_again(
    text: bytes, folder: Folder
) -> None:
    folder.path.mkdir(parents=True)
    path = folder.path / "0123.json"
    path.write_bytes(text)
    with pytest.raises(
        OpenEQAError, match=rf"^{path} should say .*delete it to have the batch for"
    ):
        folder.batches()


@pytest.mark.parametrize(
    ("field", "value"),
    [("state", "lost"), ("ids", 3), ("ids", [3]), ("name", None), ("changed", "today"),
     ("batch_id", 5), ("server", {}), ("server", [])],
)  # fmt: skip
def test_a_field_of_another_type_is_damage(field: str, value: object, folder: Folder) -> None:
    spool = folder.new()
    path = folder.path / f"{spool.batch.name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(OpenEQAError, match="cannot be used"):
        folder.batches()
    spool.drop()


def test_what_no_vendor_keeps_any_more_is_removed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for state, days in (("sent", 31), ("sent", 1), ("collected", 31), ("sending", 31)):
        monkeypatch.setattr(time, "time", lambda days=days: now - days * 86400)
        batch = folder.new().close()
        folder.write(replace(batch, state=state))  # type: ignore[arg-type]
        if state == "collected":
            folder.results(batch).write_bytes(b"{}\n")
    monkeypatch.setattr(time, "time", lambda: now)
    assert pytest.approx(30 * 86400) == KEPT_S
    assert sorted(batch.state for batch in folder.batches()) == ["sending", "sent"]
    assert list(folder.path.glob("*.results.jsonl")) == []


def test_results_that_are_gone_are_fetched_again(folder: Folder) -> None:
    batch = folder.write(replace(folder.new().close(), state="collected"))
    assert [each.state for each in folder.batches()] == ["sent"]
    folder.results(batch).write_bytes(b"")
    assert [each.state for each in folder.batches()] == ["collected"]


def test_one_at_a_time_holds_a_batch(folder: Folder) -> None:
    spool = folder.new()
    assert not folder.lock(spool.batch).take()
    spool.drop()
    again = folder.lock(spool.batch)
    assert again.take()
    again.release()


def test_what_is_given_up_leaves_nothing(folder: Folder) -> None:
    spool = folder.new()
    spool.add("one", b"{}\n")
    spool.drop()
    assert list(folder.path.iterdir()) == []


def test_results_that_were_cut_off_are_none(folder: Folder) -> None:
    batch = folder.new().close()
    with pytest.raises(ZeroDivisionError):
        collect(folder, batch, b"half", divisor=0)
    assert not folder.results(batch).exists()
    folder.remove(batch)
    assert [path.suffix for path in folder.path.iterdir()] == [".lock"]


def collect(folder: Folder, batch: Batch, results: bytes, divisor: int = 1) -> None:
    with folder.collecting(batch) as file:
        file.write(results)
        file.flush()
        _ = 1 // divisor


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """A disk on which no file can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_whole_requests_and_is_said(folder: Folder) -> None:
    spool = folder.new()
    spool.add("one", b"1" * 59 + b"\n")
    with (
        room_for(100),
        pytest.raises(OpenEQAError, match=r"^cannot keep what is known of batches in .* batch_dir"),
    ):
        spool.add("two", b"2" * 59 + b"\n")
    spool.add("three", b"3\n")
    assert spool.ids == ["one", "three"]
    assert folder.requests(spool.batch).read_bytes() == b"1" * 59 + b"\n3\n"
    batch = spool.close()
    with room_for(10), pytest.raises(OpenEQAError, match="cannot keep"):
        folder.write(replace(batch, state="sent"))
    assert folder.again(batch) == batch
    with room_for(10), pytest.raises(OpenEQAError, match="cannot keep"):
        collect(folder, batch, b"x" * 20)
    assert not folder.results(batch).exists()
    spool.lock.release()


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenEQAError, match=r"batches in .*file/batches: Not a directory\. Mend"):
        Folder(tmp_path / "file" / "batches", SERVER).new()
