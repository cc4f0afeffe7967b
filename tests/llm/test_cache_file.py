"""The cache's file in every state that a disk, a kill or another program leaves it in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest

from openeqa_lab.llm import Completion, cache_file
from openeqa_lab.llm.cache import CompletionCache, Mode
from openeqa_lab.records import Usage

START = """
import asyncio, json, logging, os, sys
from openeqa_lab.llm import Completion
from openeqa_lab.llm.cache import CompletionCache
from openeqa_lab.records import Usage
logging.basicConfig(format="%(message)s")
path = sys.argv[1]

async def one(cache, number, text=None):
    async def ask():
        return Completion(text or f"reply {number}", usage=Usage(1, 10, 2, 0.5))
    return await cache.through({"number": number}, ask)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that uses a cache."""
    command = [sys.executable, "-c", START + script, *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(script: str, *arguments: object) -> tuple[str, str]:
    """What it writes to its two outputs."""
    process = start(script, *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out, err


async def through(cache: CompletionCache, number: int) -> Completion:
    async def ask() -> Completion:
        return Completion(f"reply {number}", usage=Usage(1, 10, 2, 0.5))

    return await cache.through({"number": number}, ask)


def closed(path: Path) -> None:
    """Wait until no connection is open, which its thread sees to."""
    for _ in range(1000):
        if not Path(f"{path}-shm").exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} is still open")


def fill(path: Path, count: int) -> None:
    """A file of so many replies."""

    async def several() -> None:
        cache = CompletionCache("write", path)
        for number in range(count):
            await through(cache, number)

    asyncio.run(several())
    closed(path)


def hits(path: Path, count: int, mode: Mode = "read", *, alone: bool = True) -> int:
    """How many of so many replies are there."""

    async def several() -> int:
        cache = CompletionCache(mode, path)
        replies = [await through(cache, number) for number in range(count)]
        assert [reply.text for reply in replies] == [f"reply {n}" for n in range(count)]
        return sum(reply.usage.cache_hits for reply in replies)

    found = asyncio.run(several())
    if alone:
        closed(path)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "completions.sqlite"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """The one warning that there was."""

    def only() -> str:
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        caplog.clear()
        return record.getMessage()

    return only


def everything(folder: Path) -> dict[str, bytes]:
    """What is in a folder, but for the empty lock."""
    files = [file for file in folder.iterdir() if file.is_file() and file.suffix != ".lock"]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_all_files_are_their_owners_only_whatever_the_umask(path: Path, mask: int) -> None:
    script = """
os.umask(int(sys.argv[2]))
cache = CompletionCache("write", path)
asyncio.run(one(cache, 1))
for name in sorted(os.listdir(os.path.dirname(path))):
    print(name, oct(os.stat(os.path.join(os.path.dirname(path), name)).st_mode & 0o777))
"""
    out, err = run(script, path, mask)
    ends = ("", "-shm", "-wal", ".lock")
    assert out.splitlines() == [f"completions.sqlite{end} 0o600" for end in ends]
    assert err == ""
    assert sorted(os.listdir(path.parent)) == ["completions.sqlite", "completions.sqlite.lock"]


def test_processes_that_begin_a_file_at_once_lose_no_reply(path: Path) -> None:
    script = """
async def work():
    cache = CompletionCache("write", path)
    sys.stdin.readline()
    for number in [*range(100), *(1000 * int(sys.argv[2]) + n for n in range(1, 101))]:
        assert (await one(cache, number)).text == f"reply {number}"
asyncio.run(work())
"""
    processes = [start(script, path, which) for which in (1, 2, 3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM completions").fetchone() == (400,)
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()
    assert [name for name in os.listdir(path.parent) if ".new-" in name] == []


def test_what_was_kept_is_there_after_a_kill_of_its_writer(path: Path) -> None:
    script = """
async def work():
    cache = CompletionCache("write", path)
    for number in range(10**6):
        await one(cache, number)
        print(number, flush=True)
asyncio.run(work())
"""
    for _ in range(3):
        process = start(script, path)
        assert process.stdout is not None
        kept = -1
        while kept < 300:
            kept = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest, err = process.communicate(timeout=60)
        kept = int((rest.rpartition("\n")[0].splitlines() or [kept])[-1])
        assert err == ""
        assert hits(path, kept + 1) == kept + 1


def test_a_kill_while_files_are_made_leaves_whole_ones_only(path: Path) -> None:
    script = """
import itertools, signal, threading
threading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), signal.SIGKILL)).start()
for number in itertools.count():
    asyncio.run(one(CompletionCache("write", f"{path}.{number}"), 0))
"""
    made = 0
    for delay in (0.02, 0.2, 0.5):
        folder = path.parent / str(delay)
        process = start(script, folder / "c", delay)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (-signal.SIGKILL, "")
        for file in [file for file in folder.glob("c.*") if file.suffix[1:].isdigit()]:
            made += 1
            hits(file, 1, "write")
            assert hits(file, 1) == 1
    assert made


def test_a_forked_process_has_a_connection_and_a_thread_of_its_own(path: Path) -> None:
    script = """
cache = CompletionCache("write", path)
asyncio.run(one(cache, 1))
if os.fork() == 0:
    assert asyncio.run(one(cache, 1)).usage.cache_hits == 1
    asyncio.run(one(cache, 2))
    sys.exit(0)
assert os.wait()[1] == 0
assert asyncio.run(one(cache, 2)).usage.cache_hits == 1
asyncio.run(one(cache, 3))
"""
    assert run(script, path) == ("", "")
    assert hits(path, 4) == 3


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def words(path: Path) -> None:
    path.write_text('{"not": "a database"}\n')


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    fill(path, 200)
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def scribble_over(path: Path) -> None:
    """Leave the first page whole, and no other."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))


def scribbled_over(path: Path) -> None:
    fill(path, 200)
    scribble_over(path)


DAMAGES = pytest.mark.parametrize("damage", [garbage, words, empty, cut, scribbled_over])


@DAMAGES
def test_a_damaged_file_is_set_aside_by_a_writer_and_a_new_one_begun(
    path: Path, damage: Callable[[Path], None], said: Callable[[], str]
) -> None:
    damage(path)
    old = path.read_bytes()
    assert hits(path, 3, "write") == 0
    assert said().startswith(f"the completion cache {path} is damaged (")
    assert hits(path, 3) == 3
    aside = path.with_name("completions.sqlite.damaged-1")
    assert (aside.read_bytes(), path.stat().st_mode & 0o777) == (old, 0o600)
    # and once more, beside the first
    damage(path)
    assert hits(path, 3, "write") == 0
    assert "set aside as completions.sqlite.damaged-2 and a new one is begun; delete" in said()
    assert aside.read_bytes() == old


@DAMAGES
def test_a_damaged_file_is_left_by_a_reader_which_goes_on_without_it(
    path: Path, damage: Callable[[Path], None], said: Callable[[], str]
) -> None:
    damage(path)
    old = everything(path.parent)
    assert hits(path, 3) == 0
    assert everything(path.parent) == old
    message = said()
    assert message.startswith(f"the completion cache {path} cannot be used (")
    assert message.endswith(
        ": the run goes on without it; a run with cache=write sets it aside and begins a new one"
    )


@pytest.mark.parametrize(
    ("damage", "found"),
    [(garbage, "file is not a database"), (empty, "there is nothing in it")],
)
def test_it_is_said_what_is_wrong_with_a_damaged_file(
    path: Path, damage: Callable[[Path], None], found: str, said: Callable[[], str]
) -> None:
    damage(path)
    hits(path, 1, "write")
    assert f"({found})" in said()


async def all_hits(cache: CompletionCache) -> int:
    return sum([(await through(cache, number)).usage.cache_hits for number in range(200)])


def test_a_file_that_is_damaged_in_mid_run_is_set_aside(
    path: Path, said: Callable[[], str]
) -> None:
    fill(path, 200)
    cache = CompletionCache("write", path)
    assert asyncio.run(all_hits(cache)) == 200
    cache = CompletionCache("write", path)
    assert asyncio.run(through(cache, 0)).usage.cache_hits == 1
    scribble_over(path)
    found = [asyncio.run(all_hits(cache)) for _ in range(3)]
    assert found[0] < 100  # what SQLite has in memory is still found
    assert found[2] == 200
    assert "set aside as completions.sqlite.damaged-1 and a new one is begun" in said()


def test_on_a_disk_that_damages_all_files_one_is_set_aside(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(connection: sqlite3.Connection) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    fill(path, 1)
    monkeypatch.setattr(cache_file, "_check", damaged)
    assert hits(path, 3, "write") == 0
    first, second = (record.getMessage() for record in caplog.records)
    assert "set aside as completions.sqlite.damaged-1" in first
    assert "cannot be used (database disk image is malformed): the run goes on without" in second
    assert second.endswith("mend that for the next run, or name another folder with cache_dir")
    assert sorted(everything(path.parent)) == [path.name, f"{path.name}.damaged-1"]


def test_a_new_file_that_another_process_began_is_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = path.with_name("good.sqlite")
    fill(good, 200)
    fill(path, 200)
    cache = CompletionCache("write", path)
    assert asyncio.run(through(cache, 0)).usage.cache_hits == 1
    with filelock.FileLock(f"{path}.lock"):
        scribble_over(path)
        found: list[int] = []
        user = threading.Thread(target=lambda: found.append(asyncio.run(all_hits(cache))))
        user.start()
        time.sleep(0.2)
        for end in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):  # closed by SQLite already
                os.rename(f"{path}{end}", f"{path}.aside{end}")
        os.rename(good, path)
    user.join()
    assert (found, caplog.text) == ([200], "")


def test_a_damaged_file_that_another_process_has_open_is_left(
    path: Path, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_file, "_PAUSE_S", 0.001)
    fill(path, 200)
    script = """
cache = CompletionCache("write", path)
asyncio.run(one(cache, 0))
print("open", flush=True)
sys.stdin.readline()
"""
    other = start(script, path)
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    scribble_over(path)
    try:
        assert hits(path, 2, "write", alone=False) == 0
        assert "malformed, and another process has it open): the run goes on" in said()
    finally:
        other.communicate("\n", timeout=60)
    assert not list(path.parent.glob("*.damaged-*"))
    assert hits(path, 2, "write") == 0
    assert "set aside as completions.sqlite.damaged-1" in said()


def test_what_sqlite_left_beside_a_damaged_file_goes_with_it(
    path: Path, said: Callable[[], str]
) -> None:
    garbage(path)
    Path(f"{path}-journal").write_bytes(b"\0" * 600)
    assert hits(path, 2, "write") == 0
    assert "set aside as completions.sqlite.damaged-1" in said()
    assert Path(f"{path}.damaged-1-journal").read_bytes() == b"\0" * 600
    assert hits(path, 2) == 2


def test_processes_that_find_a_damaged_file_at_once_begin_one_new_file(path: Path) -> None:
    script = """
async def work():
    sys.stdin.readline()
    cache = CompletionCache("write", path)
    for number in (int(sys.argv[2]), 1000 + int(sys.argv[2])):
        await one(cache, number)
asyncio.run(work())
"""
    for damage in (garbage, scribbled_over):
        damage(path)
        processes = [start(script, path, which) for which in range(4)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        errors = [process.communicate(timeout=60)[1] for process in processes]
        assert sum(error.count("is damaged") for error in errors) == 1, errors
        assert [process.returncode for process in processes] == [0] * 4
        assert sum(error.count("\n") for error in errors) == 1
        assert hits(path, 4) == 4
        [aside] = path.parent.glob("*.damaged-1")
        aside.unlink()
        path.unlink()


def foreign(path: Path, version: int, table: str) -> None:
    with sqlite3.connect(path) as file:
        file.execute(f"CREATE TABLE {table} (x)")
        file.execute(f"PRAGMA user_version = {version}")
    file.close()


def newer(path: Path) -> None:
    foreign(path, 7, "completions")


def of_another_program(path: Path) -> None:
    foreign(path, 0, "bookmarks")


def of_another_program_with_a_version(path: Path) -> None:
    foreign(path, 1, "bookmarks")


def with_other_columns(path: Path) -> None:
    foreign(path, 1, "completions")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("mode", ["read", "write"])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            newer,
            "it was made by a newer version of openeqa-lab: its format is 7, and 1 is what this "
            "one reads",
        ),
        (of_another_program, "it was made by something else: its format is 0, and 1"),
        (of_another_program_with_a_version, "it was made by something else"),
        (with_other_columns, "no such column"),
        (a_folder, "it is no file"),
        (a_pipe, "it is no file"),
    ],
)
def test_what_is_no_cache_of_this_version_is_left_and_said_once(
    path: Path, mode: Mode, make: Callable[[Path], None], found: str, said: Callable[[], str]
) -> None:
    make(path)
    old = everything(path.parent)
    assert hits(path, 3, mode) == 0
    message = said()
    assert message.startswith(f"the completion cache {path} cannot be used ({found}")
    assert message.endswith(
        "): the run goes on without it; mend that for the next run, or name another folder with "
        "cache_dir"
    )
    assert everything(path.parent) == old


@pytest.mark.parametrize("version", [0, -1, 2])
def test_another_format_is_not_read(path: Path, version: int, said: Callable[[], str]) -> None:
    fill(path, 1)
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA user_version = {version}")
    file.close()
    assert hits(path, 1, "write") == 0
    assert f"its format is {version}, and {cache_file.VERSION} is what this one reads" in said()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_folder_that_cannot_be_is_said_once(
    tmp_path: Path, mode: Mode, said: Callable[[], str]
) -> None:
    (tmp_path / "file").write_text("")
    assert hits(tmp_path / "file" / "completions.sqlite", 3, mode) == 0
    assert "(Not a directory): the run goes on without it" in said()


@pytest.mark.parametrize(
    "row",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        "[" * 100_000,
        '{"text": "yes"}',
        '{"text": 3, "finish_reason": "stop", "model": "m", "adjusted": []}',
        '{"text": "yes", "finish_reason": "refusal", "model": "m", "adjusted": []}',
        '{"text": "yes", "finish_reason": "stop", "model": "m", "adjusted": "seed"}',
        '{"text": "yes", "finish_reason": "stop", "model": "m", "adjusted": [1]}',
        b'{"text": "\xff", "finish_reason": "stop", "model": "m", "adjusted": []}',
        7,
        1.5,
        b"",
        b"\x80\x04K\x01.",  # a pickle
    ],
    ids=lambda row: repr(row)[:40],
)
def test_a_row_that_is_no_reply_is_asked_again_and_replaced_by_a_writer(
    path: Path, row: object, said: Callable[[], str]
) -> None:
    fill(path, 3)
    with sqlite3.connect(path) as file:
        changed = file.execute(
            "UPDATE completions SET reply = ? WHERE reply NOT LIKE '%reply 2%'", (row,)
        )
        assert changed.rowcount == 2
    file.close()
    assert hits(path, 3) == 1
    assert "asked again; cache=write replaces them" in said()
    assert hits(path, 3, "write") == 1
    message = said()
    assert message.startswith(f"the completion cache {path} holds rows that cannot be read (the ")
    assert message.endswith("asked again and replaced")
    assert hits(path, 3) == 3


def test_a_file_of_any_journal_mode_is_used(path: Path) -> None:
    fill(path, 2)
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    file.close()
    assert hits(path, 3, "write") == 2
    assert hits(path, 3) == 3


def test_a_file_system_that_cannot_hold_the_log_is_done_without(
    path: Path, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite3.connect

    def without_shared_memory(name: object, **options: object) -> sqlite3.Connection:
        return real(f"file:{name}?vfs=unix-dotfile", uri=True, isolation_level=None)

    monkeypatch.setattr(sqlite3, "connect", without_shared_memory)
    assert hits(path, 3, "write") == 0
    assert "(its file system cannot hold SQLite's write-ahead log): the run goes on" in said()
    assert everything(path.parent) == {}


def test_a_lock_that_stays_too_long_ends_the_writing_but_not_the_reading(
    path: Path, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_file, "_PATIENCE_S", 0.1)
    fill(path, 2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert hits(path, 6, "write", alone=False) == 2
    other.close()
    assert said() == (
        f"the completion cache {path} cannot be written (database is locked): the run goes on, and "
        "what it buys from now on is not kept there. Make room or mend that for the next run, or "
        "name another folder with cache_dir"
    )


FULL = """
import resource
async def work():
    cache = CompletionCache("write", path)
    for number in range(int(sys.argv[3])):
        await one(cache, number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    for number in range(100, 150):
        text = os.urandom(20_000).hex()
        reply = await one(cache, number, text)
        assert (reply.text, reply.usage.calls, reply.usage.cache_misses) == (text, 1, 1)
    found = [(await one(cache, number)).usage.cache_hits for number in range(int(sys.argv[3]))]
    print(sum(found))
asyncio.run(work())
"""


@pytest.mark.parametrize("room", [200_000, 60_000])
def test_a_disk_that_fills_up_costs_no_reply_and_no_hit(path: Path, room: int) -> None:
    out, err = run(FULL, path, room, 10)
    assert out == "10\n"
    assert err.count("\n") == 1
    assert "cannot be written (" in err
    assert hits(path, 10) == 10


@pytest.mark.parametrize("room", [0, 2000, 20_000])
def test_a_disk_that_is_full_from_the_start_costs_no_reply(path: Path, room: int) -> None:
    out, err = run(FULL, path, room, 0)
    assert out == "0\n"
    assert err.count("\n") == 1
    assert "cannot be " in err
    assert not path.exists() or hits(path, 1) == 0
    assert [name for name in os.listdir(path.parent) if ".new-" in name] == []


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """A folder with a cache of three replies that another account can look into."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    fill(folder / "completions.sqlite", 3)
    (folder / "completions.sqlite.lock").unlink()
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


AS_SOMEBODY = """
import tempfile
with tempfile.TemporaryDirectory() as folder:  # has all modules loaded while we may
    asyncio.run(one(CompletionCache("write", folder + "/c"), 0))
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
async def work():
    cache = CompletionCache(sys.argv[2], path)
    print(sum([(await one(cache, number)).usage.cache_hits for number in range(6)]))
asyncio.run(work())
"""


@pytest.mark.parametrize("mode", ["read", "write"])
def test_replies_are_read_from_a_folder_that_is_read_only(others_folder: Path, mode: Mode) -> None:
    path = others_folder / "completions.sqlite"
    path.chmod(0o444)
    others_folder.chmod(0o555)
    out, err = run(AS_SOMEBODY, path, mode)
    assert out == "3\n"
    if mode == "read":
        assert err == ""
    else:
        assert "cannot be written (attempt to write a readonly database)" in err
        assert err.count("\n") == 1
    assert list(everything(others_folder)) == [path.name]


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_file_that_may_not_be_read_is_done_without(others_folder: Path, mode: Mode) -> None:
    path = others_folder / "completions.sqlite"
    path.chmod(0o000)
    out, err = run(AS_SOMEBODY, path, mode)
    assert (out, err.count("\n")) == ("0\n", 1)
    assert "cannot be used (Permission denied): the run goes on without it" in err


def test_a_folder_in_which_no_file_can_be_made_is_done_without(others_folder: Path) -> None:
    others_folder.chmod(0o555)
    out, err = run(AS_SOMEBODY, others_folder / "another.sqlite", "write")
    assert (out, err.count("\n")) == ("0\n", 1)
    assert "cannot be used (Permission denied): the run goes on without it" in err


def test_odd_characters_in_the_path_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&b#c%41 é" / "completions.sqlite"
    fill(path, 2)
    assert stat.S_ISREG(path.stat().st_mode)
    assert hits(path, 2) == 2


def test_a_link_leads_to_the_same_cache(tmp_path: Path) -> None:
    fill(tmp_path / "real.sqlite", 2)
    (tmp_path / "link.sqlite").symlink_to("real.sqlite")
    assert hits(tmp_path / "link.sqlite", 2) == 2


def test_the_connection_is_closed_when_nobody_uses_the_cache_any_more(path: Path) -> None:
    fill(path, 2)
    assert list(everything(path.parent)) == [path.name]


def test_a_row_holds_the_reply_and_its_digest_only(path: Path) -> None:
    fill(path, 1)
    with sqlite3.connect(path) as file:
        [(digest, reply)] = file.execute("SELECT digest, reply FROM completions").fetchall()
    file.close()
    assert (len(digest), json.loads(reply)) == (
        64,
        {"text": "reply 0", "finish_reason": "stop", "model": "", "adjusted": []},
    )
