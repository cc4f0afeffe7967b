"""What every Hydra command shares: its help, its errors in one line, its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from openeqa_lab import config
from openeqa_lab.errors import OpenEQAError

if TYPE_CHECKING:
    from importlib.abc import Traversable

_jobs: list[int] = []  # those that this process's command has begun
_failed: list[str] = []  # and what they could not do


def run(task: Callable[[], object], program: str, intro: str) -> int:
    """Run a Hydra command and give its exit code: a foreseen error is one line on stderr.

    Args:
        task: The function under `hydra.main`.
        program: What the command is called in its help.
        intro: One sentence that says what it does.
    """
    _jobs.clear()
    _failed.clear()
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (a closed stream is None)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know no such letter
    try:
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(options_help(program, intro), flush=True)
        else:
            task()
    except (OpenEQAError, HydraException, OmegaConfBaseException) as error:
        return _complain(_one_line(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        # Before a job has begun: Hydra's word on `group=null`, or on a folder it cannot make.
        if _jobs and getattr(error, "errno", None) != errno.ENOSPC:
            raise
        return _complain(_one_line(error))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("stopped: start the same command again to go on\n")
        return 130
    return max((_complain(line) for line in _failed), default=0)


@contextlib.contextmanager
def job() -> Iterator[None]:
    """Around a Hydra task: a foreseen error is kept for `command`, and a sweep goes on.

    Only where the jobs run in this process; another launcher must see the error to know of it.
    """
    _jobs.append(len(_jobs))
    try:
        yield
    except (OpenEQAError, OmegaConfBaseException) as error:
        hydra = HydraConfig.get()
        if not str(hydra.launcher["_target_"]).endswith("BasicLauncher"):
            raise
        line = _one_line(error)
        if hydra.mode == RunMode.MULTIRUN:
            line = f"job {hydra.job.num} ({hydra.job.override_dirname}): {line}"
        _failed.append(line)


def _complain(line: str) -> int:
    sys.stderr.write(f"error: {line}\n")
    return 1


def _one_line(error: BaseException) -> str:
    """The message in one line, with the near names where a name is wrong."""
    text = " ".join(str(error).split())
    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        known = error.options or [name for name, _ in _options(_conf() / group)]
        return f"{group}={option}: there is no such option; {config.near(option, known)}"
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.parent_node is not None:
        keys = [str(key) for key in cause.parent_node]
        return f"{cause.full_key} is no key of this config: {config.near(str(cause.key), keys)}"
    if isinstance(cause, OmegaConfBaseException | HydraException):
        more = " ".join(str(cause).split())
        text = text if more in text else f"{text} ({more})"
    if "OverrideParse" in type(error).__name__ or "OverrideParse" in type(cause).__name__:
        text += "; a value with = , : [ ] { } or blanks is quoted twice: \"group.knob='a=b'\""
    return text


def options_help(program: str, intro: str) -> str:
    """What `--help` prints: every group's options with the first comment of their files.

    Hydra's own page composes everything several times over, which takes longer than a run.
    """
    lines = [intro, "", f"usage: {program} [group=option ...] [group.knob=value ...]", ""]
    for group in sorted(_conf().iterdir(), key=lambda path: path.name):
        if group.is_dir() and not group.name.startswith("_"):
            lines.append(f"{group.name}:")
            lines += [f"  {name:<20}{sentence}" for name, sentence in _options(group)]
    lines += [
        "",
        "-m, --multirun      sweep over comma-separated values: -m sampler.k=1,5,15,50",
        "--cfg job           print the composed config with every knob, and stop",
        "run.dry_run=true    compose everything, look whether frames are there, and stop",
        "--hydra-help        Hydra's own flags",
    ]
    return "\n".join(lines)


def _conf() -> Traversable:
    """The folder of the config files."""
    installed = find_spec("openeqa_lab.conf")
    return resources.files("openeqa_lab.conf") if installed else Path(config.conf_path())


def _options(group: Traversable) -> list[tuple[str, str]]:
    """The options of a group, each with its first sentence; none where there is no such group."""
    if not group.is_dir():
        return []
    yaml_files = (path for path in group.iterdir() if path.name.endswith(".yaml"))
    files = sorted(yaml_files, key=lambda path: path.name)
    return [
        (file.name.removesuffix(".yaml"), _first_sentence(file.read_text("utf-8")))
        for file in files
    ]


def _first_sentence(text: str) -> str:
    """Of the first comment of a YAML file, its `@package` line aside."""
    comment = re.search(r"^# [^@](?:.*\n# ?)*.*", text, re.MULTILINE)
    words = " ".join(comment.group().replace("\n#", " ").split()[1:]) if comment else ""
    return re.split(r"(?<=[\w)])\. ", words + " ", maxsplit=1)[0].strip()
