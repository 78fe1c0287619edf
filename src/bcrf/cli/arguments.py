"""What the parsers of several commands have in common."""

from __future__ import annotations

import argparse

__all__ = ["INPUT_FORMATS", "OUTPUT_FORMATS", "add_methods", "command_parser"]

INPUT_FORMATS = ("auto", "conllu", "columns", "conll2003", "uner", "jsonl", "text")
OUTPUT_FORMATS = ("conllu", "columns", "jsonl")


def command_parser(name: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"bcrf {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_methods(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """The choice of decoder (or several), repair and device."""
    parser.add_argument(
        "--decoder",
        metavar="NAME",
        type=_decoder,
        action="append" if several else "store",
        help="viterbi, certified, unstructured, mean_field-K, bregman-K (the paper's projections) "
        "or bregman-K-relaxed, with K iterations (default: what the model was trained to use)"
        + ("; may be given several times" if several else ""),
    )
    parser.add_argument(
        "--repair",
        choices=("rule", "mbr", "none"),
        help="what to do with ill-formed tags, which only viterbi and certified never choose: "
        "mend them by the task's rule, take the best well-formed ones by the decoder's marginals, "
        "or nothing (default: what the model was trained to use)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=_device,
        default="auto",
        help="auto, cpu, cuda or cuda:N (default: a GPU where there is one)",
    )


def _decoder(name: str) -> str:
    from ..nn import check_decoder
    from ..tagging.limits import check_methods

    try:
        check_decoder(name)
        check_methods(decoder=name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _device(name: str) -> str:
    from ..tagging import choose_device

    try:
        choose_device(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name
