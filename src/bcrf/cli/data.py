"""`bcrf data`: treebanks of Universal Dependencies, fetched by name."""

from __future__ import annotations

import sys

from .arguments import command_parser
from .progress import progress_bar

__all__ = ["run"]

_EPILOG = """\
Files are checked against the checksum file that lies beside them (SHA256SUMS or FILE.sha256); where
there is none, against the SHA-256 of the first download. Interrupted downloads go on where they
stopped. What is there already needs no connection.

The cache is $BCRF_CACHE, else bcrf in the user's cache folder; each source has a folder there.

  bcrf data en_ewt zh_gsd
  bcrf data en_ewt --from ud-treebanks-v2.15   # an unpacked release
  bcrf data --list
"""


def run(arguments: list[str]) -> int:
    from ..fetching import DEFAULT_RELEASE, TREEBANKS, fetch_treebank

    parser = command_parser(
        "data", "Fetch treebanks into the cache, and print the paths of their files.", _EPILOG
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a treebank, such as en_ewt")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="DIR_OR_URL",
        help="take the files from this folder or address; there they may lie as they are, in a "
        "folder NAME, or in one named as the official repository (default: the official ones)",
    )
    parser.add_argument("--to", metavar="DIR", help="put them here, in a folder NAME")
    parser.add_argument(
        "--release",
        metavar="VERSION",
        default=DEFAULT_RELEASE,
        help="of the official treebanks (default: %(default)s)",
    )
    parser.add_argument("--refresh", action="store_true", help="fetch even what is there")
    parser.add_argument("--list", action="store_true", help="list the names that are known")
    options = parser.parse_args(arguments)
    if options.list:
        for name, repository in TREEBANKS.items():
            print(f"{name:18} {repository}")
        return 0
    if not options.names:
        parser.error("give the names of treebanks, such as en_ewt, or --list")
    for name in options.names:
        with progress_bar() as update:
            treebank = fetch_treebank(
                name, options.source, options.to, options.release, options.refresh, update
            )
        state = "fetched from" if treebank.fetched else "was there already, from"
        missing = [split for split in ("train", "dev", "test") if split not in treebank.files]
        without = f", which has no {' and no '.join(missing)} file" if missing else ""
        print(f"{name}: {state} {treebank.source}{without}", file=sys.stderr)
        for path in treebank.files.values():
            print(path)
    return 0
