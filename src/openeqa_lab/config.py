"""From a composed config to objects: the one place where Hydra meets the library."""

from __future__ import annotations

import difflib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from openeqa_lab.errors import OpenEQAError

Node = Mapping[Any, object]
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The `run:` node: how a run goes about it, never what it measures. See conf/run.yaml."""

    name: str | None = None
    group: str | None = None
    dry_run: bool = False
    resume: bool = True
    reask: Sequence[Literal["refused", "blocked", "empty"]] = ()
    coverage: float = 0.98
    budget_usd: float | None = None
    preflight: bool = True
    yes: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.coverage <= 1:
            raise OpenEQAError(
                f"run.coverage = {self.coverage}: a share from 0 to 1 is needed, 0.98 for 98 %"
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """What stands at the root of conf/run.yaml beside the groups."""

    output_dir: str | None
    concurrency: int


def conf_path() -> str:
    """Where the config files are: in the installed package, or beside src/ in a plain checkout."""
    if find_spec("openeqa_lab.conf"):
        return "pkg://openeqa_lab.conf"
    return str(Path(__file__).resolve().parents[2] / "conf")


def plain(config: DictConfig, known: Sequence[str]) -> dict[str, object]:
    """The config as plain values, interpolations resolved.

    Args:
        config: As Hydra composed it.
        known: The keys that may stand at its root.

    Raises:
        OpenEQAError: A value that has no default is not given, or another key stands at the root,
            which a `+` on the command line lets in.
    """
    try:
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue:
        unset = sorted(OmegaConf.missing_keys(config))
        raise OpenEQAError(
            f"{' and '.join(unset)} must be given: " + " ".join(f"{key}=..." for key in unset)
        ) from None
    assert isinstance(container, dict)  # noqa: S101 (a DictConfig's container is a dict)
    node = {str(key): value for key, value in container.items()}
    if missing := [key for key in known if key not in node]:
        raise OpenEQAError(f"{' and '.join(missing)} must not be left out of the config")
    for key in node:
        if key not in known:
            raise OpenEQAError(f"{key} is no key of this command: {near(key, known)}")
    return node


def build(node: object, path: str) -> Any:
    """The object that a node describes, with all nodes inside it.

    Args:
        node: Plain values with a `_target_`.
        path: The node's place in the config, for messages.

    Returns:
        What the target gives; that it plays its role is checked by the kits of `testing`.

    Raises:
        OpenEQAError: A knob that does not exist, is missing or of the wrong type; all such faults
            are named at once, before anything is built.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise OpenEQAError(f"{path} = {node!r}: a group option, or a _target_, is needed")
    if faults := list(_faults(node, path)):
        raise OpenEQAError("; ".join(faults))
    try:
        return instantiate(dict(node), _convert_="all")
    except InstantiationException as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None  # a constructor's own error, with its own traceback


def build_all(nodes: object, path: str) -> dict[str, Any]:
    """The objects of a group that takes several options, by name."""
    named = nodes if isinstance(nodes, Mapping) else {}
    return {name: build(node, f"{path}.{name}") for name, node in named.items()}


def _faults(node: object, path: str) -> Iterator[str]:
    """What keeps a node, or one inside it, from being built; every message names its place."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield from _target_faults(node, path)
        for key, value in node.items():
            yield from _faults(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _faults(value, f"{path}[{index}]")


def _target_faults(node: Node, path: str) -> Iterator[str]:
    target = _locate(str(node["_target_"]), path)
    try:
        known = inspect.signature(target).parameters
    except ValueError:  # a built-in that does not say what it takes
        return
    hints = _hints(target)
    prefix = f"{path}." if path else ""
    for key in node:
        if not isinstance(key, str):
            yield (
                f"{prefix}{key} is no word: YAML reads yes, no, on and off as true and false, so "
                'put such a key in quotes, "yes"'
            )
    words = {key: value for key, value in node.items() if isinstance(key, str)}
    given = {key: value for key, value in words.items() if not key.startswith("_")}
    takes_any = any(each.kind == each.VAR_KEYWORD for each in known.values())
    for key, value in given.items():
        if key not in known and takes_any:
            continue
        if key not in known:
            yield f"{prefix}{key} is no knob of {node['_target_']}: {near(key, list(known))}"
        elif fault := _type_fault(value, hints.get(key)):
            yield f"{prefix}{key} = {value!r}: {fault}"
    for key, parameter in known.items():
        several = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if key not in given and parameter.default is parameter.empty and not several:
            yield f"{prefix}{key} is missing: {node['_target_']} needs it"


def near(key: str, known: Sequence[str]) -> str:
    """What may have been meant, or all there is, for the end of a message."""
    found = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(found)}?" if found else f"there are {', '.join(known)}"


def _locate(name: str, path: str) -> Callable[..., object]:
    try:
        located = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OpenEQAError(
            f"{path}._target_ = {name}: {error}; it must name a class that this Python can import"
        ) from None
    if not callable(located):
        raise OpenEQAError(f"{path}._target_ = {name}: that is no class")
    target: Callable[..., object] = located
    return target


def _type_fault(value: object, hint: object) -> str | None:
    """Why a plain value does not fit its annotation; nodes that build objects are not looked at."""
    if hint is None or _builds(value):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number is needed"
    try:
        adapter = _adapter(hint)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation):
        # the annotation is a protocol: an object is needed, which no plain value is
        return "a group option, or a mapping with a _target_, is needed" if value else None
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as error:
        return "; ".join(dict.fromkeys(fault["msg"] for fault in error.errors()))
    return None


@cache
def _adapter(hint: object) -> TypeAdapter[object]:
    return TypeAdapter(hint)  # type: ignore[arg-type]


def _hints(target: Callable[..., object]) -> Mapping[str, object]:
    """The annotations of a target's parameters; none where they name what is not imported."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except NameError:
        return {}


def _builds(value: object) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(_builds(inner) for inner in value.values())
    return isinstance(value, list) and any(_builds(inner) for inner in value)


def run_options(node: object) -> RunOptions:
    """The `run:` node, checked like any other."""
    return _checked(RunOptions, node, "run")


def limits(settings: Mapping[str, object]) -> Limits:
    """The knobs at the root, checked like any other."""
    return _checked(Limits, {field.name: settings[field.name] for field in fields(Limits)}, "")


def _checked(kind: type[Options], node: object, path: str) -> Options:
    values = node if isinstance(node, Mapping) else {}
    built: Options = build({**values, "_target_": f"{kind.__module__}.{kind.__qualname__}"}, path)
    return built
