"""The installed package is whole."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_every_package_folder_is_listed(repository: Path) -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(repository / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    source = repository / "src"
    folders = {
        ".".join(path.parent.relative_to(source).parts)
        for path in (source / "openeqa_lab").rglob("__init__.py")
    }
    assert listed == folders | {"openeqa_lab.conf"}


def test_conf_is_importable_and_its_init_is_empty(repository: Path) -> None:
    assert (repository / "conf" / "__init__.py").read_bytes() == b""


def test_no_large_file_is_part_of_the_project(repository: Path) -> None:
    large = [
        path.relative_to(repository)
        for folder in ("src", "conf", "tests", "experiments", "notebooks")
        for path in (repository / folder).rglob("*")
        if path.is_file() and path.stat().st_size > 1_000_000
    ]
    assert large == []


def test_every_public_name_can_be_imported() -> None:
    import openeqa_lab

    assert [
        getattr(openeqa_lab, name).__name__ for name in openeqa_lab.__all__
    ] == openeqa_lab.__all__
    assert set(openeqa_lab.__all__) == set(openeqa_lab._HOMES)


@pytest.mark.slow
def test_an_installed_package_runs_from_any_folder(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    copy = tmp_path / "source"
    ignore = shutil.ignore_patterns(".git", "*.egg-info", "build", "outputs", ".*_cache")
    shutil.copytree(repository, copy, ignore=ignore)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(copy)], check=True)
    for folder, path in ((tmp_path / "a", target), (tmp_path / "b", copy / "src")):
        folder.mkdir()  # installed, and a plain checkout
        code = "import openeqa_lab; print(openeqa_lab.__file__)"
        environment = os.environ | {"PYTHONPATH": str(path)}
        for command in (["-c", code], ["-m", "openeqa_lab.run", "experiment=demo"]):
            result = subprocess.run(
                [sys.executable, *command], cwd=folder, env=environment, text=True,
                capture_output=True, check=True,
            )  # fmt: skip
            assert str(path) in result.stdout or "24 of 24 judged" in result.stdout
