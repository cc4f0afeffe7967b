"""Who may import whom, and what may be imported when, held against the syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "openeqa_lab"
MODULES = sorted(SOURCE.rglob("*.py"))

# A module may import from its own layer's package and from the layers above it in this list.
LAYERS = [
    {"errors"},
    {"data"},
    {"records"},
    {"identity"},
    {"sampling", "images", "prompts", "llm", "entries"},
    {"journal"},
    {"reasoners", "judges", "metrics"},
    {"report"},
    {"loggers"},
    {"budget", "concurrency", "progress", "runner"},
    {"evaluation"},
    {"plan"},
    {"preflight"},
]
COMMANDS = {"run", "fetch", "config", "command"}  # and testing, demo: exempt from the layers
HYDRA = {"hydra", "omegaconf"}
LAZY = {
    "torch", "litellm", "wandb", "cv2", "av", "wordllama", "scipy", "kornia_rs", "cykooz_resizer",
    "transformers", "xllamacpp",
}  # fmt: skip


def unit(module: Path) -> str:
    """The module's first name below the package."""
    return module.relative_to(SOURCE).with_suffix("").parts[0]


def imports(tree: ast.AST, *, at_start: bool = False) -> Iterator[str]:
    """Dotted names imported at run time, or only those imported when the module is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if at_start and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node, at_start=at_start)


def own_units(tree: ast.AST) -> set[str]:
    """Names below openeqa_lab that a module imports."""
    names = (name.split(".") for name in imports(tree))
    return {parts[1] for parts in names if parts[0] == "openeqa_lab" and len(parts) > 1}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_the_layers_below_it(module: Path) -> None:
    name = unit(module)
    rank = next((i for i, layer in enumerate(LAYERS) if name in layer), None)
    if rank is None:
        assert name in COMMANDS | {"testing", "demo", "__init__"}, f"{name} is in no layer"
        return
    allowed = set().union(*LAYERS[:rank]) | {name}
    assert own_units(ast.parse(module.read_text())) <= allowed


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_command_modules_know_hydra_and_heavy_packages_load_when_needed(module: Path) -> None:
    tree = ast.parse(module.read_text())
    everywhere = {name.split(".")[0] for name in imports(tree)}
    if unit(module) not in COMMANDS:
        assert not everywhere & HYDRA
    at_start = {name.split(".")[0] for name in imports(tree, at_start=True)}
    assert not at_start & LAZY
    homes = {"litellm": {"llm/client.py", "llm/bodies.py"}, "wandb": {"loggers/wandb.py"}}
    for package, modules in homes.items():
        if package in everywhere:
            assert str(module.relative_to(SOURCE)) in modules


def test_evaluation_knows_roles_and_no_implementation_of_one() -> None:
    names = {
        name
        for module in ("evaluation", "runner", "plan")
        for name in imports(ast.parse((SOURCE / f"{module}.py").read_text()))
    }
    implementations = ("prompted", "prior", "replay", "llm_match", "lexical", "semantic", "api")
    assert not {name for name in names if set(name.split(".")) & set(implementations)}


def test_the_runner_and_the_protocols_load_nothing_heavy() -> None:
    code = (
        "import sys, openeqa_lab.run, openeqa_lab.evaluation, openeqa_lab.reasoners.prompted, "
        "openeqa_lab.judges.llm_match, openeqa_lab.llm.api\n"
        f"print([name for name in {sorted(LAZY)} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
