"""The parser that all commands use, and the options that several commands share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

__all__ = [
    "INPUT_FORMATS",
    "OUTPUT_FORMATS",
    "CommandParser",
    "add_cluster_options",
    "add_input_format",
    "add_prediction_options",
    "add_threads_option",
    "command_parser",
    "decoder_name",
    "one_of",
    "probability",
    "use_threads",
    "whole_number",
]

INPUT_FORMATS = ("auto", "conllu", "columns", "conll2003", "uner", "jsonl", "text")
OUTPUT_FORMATS = ("conllu", "columns", "jsonl")


class CommandParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose messages suggest the option that was probably meant."""

    def parse_args(  # type: ignore[override]  # we need no other namespace
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Parse the arguments; exit with code 2 and a message if they are wrong."""
        arguments = list(sys.argv[1:] if args is None else args)
        self._check_option_names(arguments)
        options, unknown = self.parse_known_args(arguments)
        if unknown:  # files may stand after options: `bcrf tag MODEL --engine ray FILE`
            options, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        return options

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, reworded for users, and exit with code 2."""
        message = re.sub(
            "^the following arguments are required: (.*)",
            lambda match: f"expected {match[1]}",
            message,
        )
        message = re.sub("^argument ", "", message)
        message = message.replace("expected one argument", "expected a value")
        hint = f"{self.prog} --help explains all options."
        self.exit(2, f"{self.format_usage()}{self.prog}: error: {message}\n{hint}\n")

    def _check_option_names(self, arguments: Sequence[str]) -> None:
        """Report an unknown option before argparse reads its value as a positional argument."""
        known = self._option_string_actions
        for argument in arguments:
            if argument == "--":
                return
            name = argument.partition("=")[0]
            if name.startswith("--") and name not in known and " " not in name:
                from ..suggestions import did_you_mean

                self.error(f"there is no option {name}{did_you_mean(name, known)}")


def command_parser(
    command: str, description: str, epilog: str = "", usage: str | None = None
) -> CommandParser:
    """Return a parser for `command`, such as "bcrf tag"."""
    return CommandParser(
        prog=command,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def one_of(*choices: str) -> Callable[[str], str]:
    """Return an argument type that accepts these words.

    The error for any other word suggests the most similar one, which `choices=` of argparse does
    not do.
    """

    def parse(text: str) -> str:
        if text not in choices:
            from ..suggestions import did_you_mean

            expected = f"expected {' or '.join([', '.join(choices[:-1]), choices[-1]])}"
            suggestion = did_you_mean(text, choices)
            raise argparse.ArgumentTypeError(f"{expected}, got {text!r}{suggestion}")
        return text

    return parse


def whole_number(least: int | None = None) -> Callable[[str], int]:
    """Return an argument type that accepts integers of at least `least` (None: all integers)."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if least is not None and number < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {number}")
        return number

    return parse


def probability(text: str) -> float:
    """Return the number from 0 to 1 in a text; raise ArgumentTypeError for any other text."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return number


def add_input_format(parser: argparse.ArgumentParser, option: str, files: str) -> None:
    """Add the option that names the format of the files that a command reads.

    Args:
        parser: the parser of the command.
        option: the name of the option, such as "--format".
        files: which files have the format, for the help text.
    """
    parser.add_argument(
        option,
        metavar="NAME",
        type=one_of(*INPUT_FORMATS),
        default="auto",
        help=f"format of {files}: {', '.join(INPUT_FORMATS)} "
        "(default: auto, by name and first lines)",
    )


def add_prediction_options(parser: argparse.ArgumentParser, several_decoders: bool = False) -> None:
    """Add `--decoder`, `--repair`, `--device` and `--threads`."""
    parser.add_argument(
        "--decoder",
        metavar="NAME",
        type=decoder_name,
        action="append" if several_decoders else "store",
        help="viterbi, certified, unstructured, mean_field-K, bregman-K (the paper's projections) "
        "or bregman-K-relaxed, each with K iterations (default: the model's decoder)"
        + ("; may be given several times" if several_decoders else ""),
    )
    parser.add_argument(
        "--repair",
        metavar="METHOD",
        type=one_of("rule", "mbr", "none"),
        help="how to correct ill-formed tag sequences, which all decoders but viterbi and "
        "certified may return. rule: change the tags that violate the scheme; mbr: take the "
        "well-formed sequence with the largest sum of marginals; none: keep them "
        "(default: the model's method)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=_device,
        default="auto",
        help="auto, cpu, cuda or cuda:N (default: auto, which takes a GPU if there is one)",
    )
    add_threads_option(parser)


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, `--workers` and `--ray-address`."""
    parser.add_argument(
        "--engine",
        metavar="NAME",
        type=one_of("local", "ray"),
        default="local",
        help="ray: tag shards (files of JSON lines) on a Ray cluster. Each FILE is a path or a "
        "quoted pattern such as 'corpus/*.jsonl', and --output is a folder, which gets one file "
        "for each shard; started again, the command skips finished shards (default: local)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=whole_number(least=1),
        help="with --engine ray: number of processes, each with a model of its own and with "
        "--threads threads, here 1 by default (default: one for each CPU of the cluster, or for "
        "each GPU)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="with --engine ray: HOST:PORT of a cluster, or auto for the one that `ray start` has "
        "started here (default: RAY_ADDRESS, or else Ray is started on this machine only)",
    )


def add_threads_option(
    parser: argparse.ArgumentParser, default: str = "one for each core, or OMP_NUM_THREADS"
) -> None:
    """Add `--threads`; the command passes its value to `use_threads`."""
    parser.add_argument(
        "--threads",
        metavar="N",
        type=whole_number(least=1),
        help=f"number of CPU threads (default: {default})",
    )


def use_threads(threads: int | None) -> None:
    """Set the number of CPU threads of torch and the compiled kernels; None: leave it to torch."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def decoder_name(name: str) -> str:
    """Return the name of a decoder; raise ArgumentTypeError for any other text."""
    from ..tagger.model_folder.limits import check_methods
    from ..tagger.nn import check_decoder

    try:
        check_decoder(name)
        check_methods(decoder=name)
    except ValueError as error:  # argparse puts "--decoder: " before the message
        raise argparse.ArgumentTypeError(str(error).removeprefix("decoder ")) from error
    return name


def _device(name: str) -> str:
    if name in ("auto", "cpu"):  # always valid; torch checks the others
        return name
    from ..tagger import choose_device

    try:
        choose_device(name)
    except ValueError as error:
        message = str(error).replace("device must be", "must be")
        raise argparse.ArgumentTypeError(message) from error
    return name
