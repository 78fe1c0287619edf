"""`bcrf data`: fetch treebanks of Universal Dependencies by name."""

from __future__ import annotations

import sys

from .arguments import command_parser
from .terminal import progress_bar

__all__ = ["run"]

_EPILOG = """\
Each file is compared with the checksum file beside it (SHA256SUMS or FILE.sha256). If the source
has no checksum file, the file is compared with the SHA-256 of its first download. An interrupted
download continues where it stopped. Cached files need no connection.

The cache is the folder $BCRF_CACHE, or bcrf in the user's cache folder. It has a folder for each
source.

  bcrf data en_ewt zh_gsd
  bcrf data en_ewt --from ud-treebanks-v2.15   # an unpacked release
  bcrf data --list
"""


def run(arguments: list[str]) -> int:
    """Fetch the treebanks that the arguments name, or list known names; return the exit code."""
    parser = command_parser(
        "bcrf data", "Fetch treebanks into the cache, and print the paths of their files.", _EPILOG
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a treebank, such as en_ewt")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="DIR_OR_URL",
        help="take the files from this folder or address. They may be there directly, in a folder "
        "NAME, or in a folder with the name of the official repository (default: the official "
        "repositories)",
    )
    parser.add_argument(
        "--to", metavar="DIR", help="write the files to DIR/NAME instead of the cache"
    )
    parser.add_argument(
        "--release",
        metavar="VERSION",
        help="release of the official treebanks (default: 2.15, that of the paper)",
    )
    parser.add_argument("--refresh", action="store_true", help="fetch cached files again")
    parser.add_argument("--list", action="store_true", help="list the known names")
    options = parser.parse_args(arguments)
    if not (options.names or options.list):
        parser.error("expected the name of a treebank, such as en_ewt, or --list")

    from ..tagger.fetching import DEFAULT_RELEASE, TREEBANKS, fetch_treebank

    if options.list:
        for name, repository in TREEBANKS.items():
            print(f"{name:18} {repository}")
        return 0
    for name in options.names:
        with progress_bar() as update:
            release = options.release or DEFAULT_RELEASE
            treebank = fetch_treebank(
                name, options.source, options.to, release, options.refresh, update
            )
        state = "fetched from" if treebank.fetched else "already present, fetched earlier from"
        missing = [split for split in ("train", "dev", "test") if split not in treebank.files]
        without = f", which has no {' and no '.join(missing)} file" if missing else ""
        print(f"{name}: {state} {treebank.source}{without}", file=sys.stderr)
        for path in treebank.files.values():
            print(path)
    return 0
