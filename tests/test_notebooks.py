"""Each notebook runs from its first cell to its last."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
async def test_the_cells_run_in_order(path: Path) -> None:
    names: dict[str, object] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [], "a notebook is kept without its outputs"
        source = "".join(cell["source"])
        code = compile(source, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        ran = eval(code, names)
        if inspect.isawaitable(ran):
            await ran
