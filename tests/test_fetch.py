"""Upstream's files are installed whole and right, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from openeqa_lab import fetch
from openeqa_lab.data.install import Artifact, catalogue, install
from openeqa_lab.errors import OpenEQAError

CONTENTS = {"data/a.json": b"[1]", "prompts/b.txt": b"say {this}"}
FILES = [
    Artifact(source, source.removeprefix("data/"), len(content), sha256(content).hexdigest())
    for source, content in CONTENTS.items()
]


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def held(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


INSTALLED = {"a.json": b"[1]", "prompts/b.txt": b"say {this}"}


class Server(ThreadingHTTPServer):
    """Serves bytes by path; `cut` announces more than it sends, `silent` never answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut = False
        self.silent = threading.Event()
        self.silent.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/base"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.silent.wait(10)
        content = self.server.pages.get(self.path.removeprefix("/base/"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) + 100 * self.server.cut))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.silent.set()
        server.shutdown()
        thread.join()


def test_files_come_by_http_and_right_ones_are_left_alone(tmp_path: Path, server: Server) -> None:
    server.pages = dict(CONTENTS)
    done = install(FILES, tmp_path, base_url=server.url + "/")
    assert [file.action for file in done] == ["written", "written"]
    assert held(tmp_path) == INSTALLED
    assert server.asked == ["/base/data/a.json", "/base/prompts/b.txt"]
    again = install(FILES, tmp_path, base_url="http://127.0.0.1:1")
    assert [file.action for file in again] == ["already there", "already there"]


@pytest.mark.parametrize(
    "files",
    [
        CONTENTS,
        {"a.json": b"[1]", "b.txt": b"say {this}"},
        {"a.json": b"[1]", "prompts/b.txt": b"say {this}"},
    ],
)
def test_files_come_from_a_folder_flat_or_not(tmp_path: Path, files: dict[str, bytes]) -> None:
    install(FILES, tmp_path / "data", folder=write(tmp_path / "from", files))
    assert held(tmp_path / "data") == INSTALLED


def test_a_wrong_file_is_named_and_only_replaced_by_force(tmp_path: Path) -> None:
    folder = write(tmp_path / "from", CONTENTS)
    target = write(tmp_path / "data", {"prompts/b.txt": b"mine"})
    message = rf"b\.txt is there with another content: sha256 {sha256(b'mine').hexdigest()}, expec"
    with pytest.raises(OpenEQAError, match=message + rf".*{FILES[1].sha256}; --force"):
        install(FILES, target, folder=folder)
    assert held(target) == {"prompts/b.txt": b"mine"}
    done = install(FILES, target, folder=folder, force=True)
    assert [file.action for file in done] == ["written", "replaced"]
    assert held(target) == INSTALLED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"it has 0 bytes"),
        (b"[2]", r"it has 3 bytes"),
        (b"<!DOCTYPE html><title>Link Expired</title>", r"is longer than 3 bytes"),
        (b"[1]" * 10_000, r"is longer than 3 bytes"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_wrong_download_is_never_installed(
    tmp_path: Path, server: Server, content: bytes, message: str, force: bool
) -> None:
    server.pages = {"data/a.json": content}
    before = write(tmp_path, {"a.json": b"old"} if force else {})
    with pytest.raises(OpenEQAError, match=message) as caught:
        install(FILES[:1], before, base_url=server.url, force=force)
    assert f"{server.url}/data/a.json is not the right file" in str(caught.value)
    assert f"expected 3 bytes, sha256 {FILES[0].sha256}" in str(caught.value)
    assert held(tmp_path) == ({"a.json": b"old"} if force else {})


def test_a_web_page_is_called_one(tmp_path: Path) -> None:
    artifact = Artifact("a.json", "a.json", 1000, "0" * 64)
    folder = write(tmp_path / "from", {"a.json": b"\n<html>Link Expired</html>"})
    with pytest.raises(OpenEQAError, match=r"it is a web page \(sha256 [0-9a-f]{64}\), expected"):
        install([artifact], tmp_path / "data", folder=folder)


def test_a_cut_download_is_not_installed(tmp_path: Path, server: Server) -> None:
    artifact = Artifact("a", "a", 50, "0" * 64)
    server.pages, server.cut = {"a": b"half of it"}, True
    with pytest.raises(OpenEQAError, match="it has 10 bytes"):
        install([artifact], tmp_path, base_url=server.url)
    assert held(tmp_path) == {}


@pytest.mark.parametrize(
    ("base_url", "reason"),
    [
        ("{server}/nowhere", r"HTTP 404 Not Found"),
        ("http://127.0.0.1:1", r"refused"),
        ("http://[", r""),
        ("http://127.0.0.1:port", r""),
    ],
)
def test_no_network_names_the_address_and_the_folder_option(
    tmp_path: Path, server: Server, base_url: str, reason: str
) -> None:
    url = base_url.format(server=server.url)
    with pytest.raises(OpenEQAError, match=rf"Cannot download .*{reason}.*--from FOLDER") as caught:
        install(FILES, tmp_path, base_url=url)
    assert f"{url}/data/a.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert held(tmp_path) == {}


def test_a_silent_server_is_given_up(tmp_path: Path, server: Server) -> None:
    server.silent.clear()
    with pytest.raises(OpenEQAError, match=r"Cannot download .*(timed out|no data for 0\.2 s)"):
        install(FILES, tmp_path, base_url=server.url, timeout_s=0.2)


@pytest.mark.parametrize("base_url", ["file:///etc", "ftp://127.0.0.1", "", "somewhere"])
def test_other_addresses_than_http_are_refused(tmp_path: Path, base_url: str) -> None:
    with pytest.raises(OpenEQAError, match=r"is not an http\(s\) address; --from"):
        install(FILES, tmp_path, base_url=base_url)


def test_a_folder_without_the_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match=r"--from has no a\.json: looked for .*/data/a\.json, "):
        install(FILES, tmp_path / "data", folder=tmp_path / "from")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "from", CONTENTS)
    write(tmp_path, {"data": b"a file, not a folder"})
    with pytest.raises(OpenEQAError, match=r"Cannot write .*data/a\.json: .*--data-dir"):
        install(FILES, tmp_path / "data", folder=folder)
    (tmp_path / "other/a.json").mkdir(parents=True)
    with pytest.raises(OpenEQAError, match=r"Cannot read .*other/a\.json"):
        install(FILES, tmp_path / "other", folder=folder)


def test_the_catalogue_matches_the_official_files(shared: Path, tmp_path: Path) -> None:
    table = catalogue()
    assert list(table.artifacts) == ["questions", "prompts", "demo-episode", "smollm2"]
    assert "cfa3fce4595c1622bb2f8a38ae2ca9aae9eb685b" in table.base_url
    official = [table.artifacts[name] for name in ("questions", "prompts", "demo-episode")]
    for files in official:
        install(files, tmp_path, folder=shared / "data/openeqa")
    for files in official:
        for file in files:
            assert (tmp_path / file.target).stat().st_size == file.bytes
    assert len(held(tmp_path)) == 10


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = fetch.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_says_what_it_wrote_and_under_which_licence(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["questions", "prompts", "--data-dir", str(tmp_path / "d")]
    arguments += ["--from", str(shared / "data/openeqa")]
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert f"written: {tmp_path / 'd/open-eqa-v0.json'}" in out
    assert out.count("written: ") == 8
    assert "MIT" in out
    code, out, _ = run(capsys, *arguments)
    assert (code, out.count("already there: ")) == (0, 8)
    (tmp_path / "d/prompts/mmbench.txt").write_text("mine")
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "mmbench.txt is there with another content" in err
    assert run(capsys, *arguments, "--force")[0] == 0


def test_the_command_names_the_address_it_could_not_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: Server
) -> None:
    code, out, err = run(capsys, "questions", "--data-dir", str(tmp_path), "--base-url", server.url)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: Cannot download {server.url}/data/open-eqa-v0.json: HTTP 404")
    assert server.asked == ["/base/data/open-eqa-v0.json"]


@pytest.mark.parametrize("variable", [True, False])
def test_the_data_folder_is_that_of_the_environment_or_data(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENEQA_DATA_DIR", raising=False)
    if variable:
        monkeypatch.setenv("OPENEQA_DATA_DIR", str(tmp_path / "elsewhere"))
    assert run(capsys, "demo-episode", "--from", str(shared / "data/openeqa"))[0] == 0
    folder = tmp_path / ("elsewhere" if variable else "data")
    assert (folder / "frames/assets/open-eqa-hm3d-demo.mp4").is_file()


@pytest.mark.parametrize("arguments", [(), ("question",), ("questions", "--timeout", "x")], ids=str)
def test_a_wrong_command_line_is_refused(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        fetch.main(arguments)
    assert caught.value.code == 2
