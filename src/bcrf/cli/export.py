"""`bcrf export`: write a tagger as a file that runs without torch and without bcrf."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import add_input_format, command_parser, decoder_name, use_threads
from .errors import UserError, one_line_warnings
from .terminal import percent, progress_bar

__all__ = ["run"]

_EPILOG = """\
The file has the network, the decoder, the labels and the vocabularies. A program needs onnxruntime
and numpy only, or onnxruntime-web: examples/onnx_tagger.py shows how. With the decoders
bregman-K-relaxed, bregman-K and unstructured, the graph has no loop over the words; viterbi has
one. The tags are those of `bcrf tag --repair none`.

Only the default network of `bcrf train` can be exported (features of words or characters, and
convolutions), for the tasks pos, ner and segmentation.

  bcrf export runs/pos --decoder bregman-10-relaxed
  bcrf export runs/pos --quantize --check dev.conllu --output small.onnx
"""


def run(arguments: list[str]) -> int:
    """Export the model that the arguments name; return the exit code."""
    parser = command_parser(
        "bcrf export",
        "Write a tagger as a file that runs without torch.",
        _EPILOG,
        usage="bcrf export MODEL [OPTIONS]",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a model or of a training run")
    parser.add_argument(
        "--format", metavar="NAME", type=_format, default="onnx", help="onnx (default: onnx)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write this file; it appears when it is complete (default: MODEL.onnx, beside the "
        "folder MODEL)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the file if it exists already"
    )
    parser.add_argument(
        "--decoder",
        metavar="NAME",
        type=decoder_name,
        help="viterbi, bregman-K (the paper's projections), bregman-K-relaxed, mean_field-K or "
        "unstructured, each with K iterations (default: the model's decoder)",
    )
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="the graph also returns the probability of each tag at each word",
    )
    parser.add_argument(
        "--quantize",
        action="store_true",
        help="store weights in 8 bits instead of 32; the command reports how many tags change",
    )
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="compare the tags of the file and of the model on these sentences (default: on "
        "sentences of random words)",
    )
    add_input_format(parser, "--check-format", "the sentences of --check")
    options = parser.parse_args(arguments)
    use_threads(1)  # tracing a graph does no work that several threads could share

    from ..tagger import Tagger
    from ..tagger.data import read
    from ..tagger.export import ExportError, export_onnx
    from ..tagger.export.onnx_file import check_replaceable

    output = Path(options.output or f"{options.model.rstrip('/') or '.'}.onnx")
    with one_line_warnings(), progress_bar() as update:
        update("loading the model", 0, None)
        tagger = Tagger.load(options.model, "cpu")
        check_replaceable(output, options.overwrite)
        sentences = None
        if options.check is not None:
            sentences = list(read(options.check, options.check_format))
            if not sentences:
                raise UserError(f"{options.check}: has no sentences; leave out --check")
        try:
            found = export_onnx(
                tagger,
                output,
                decoder=options.decoder,
                probabilities=options.probabilities,
                quantize=options.quantize,
                overwrite=options.overwrite,
                sentences=sentences,
                progress=lambda step: update(step, 0, None),
            )
        except ExportError as error:
            raise UserError(f"{options.model}: {error}") from error
    loops = "a loop over the words" if found.has_loops else "no loop over the words"
    print(f"{output}: {found.size / 1e6:.1f} MB, decoder {found.decoder}, {loops}")
    on = options.check or "sentences of random words"
    print(
        f"{percent(found.agreement.share)} of the tags agree with the model on {on} "
        f"({found.agreement.same} of {found.agreement.tokens})"
    )
    return 0


def _format(name: str) -> str:
    if name != "onnx":
        raise argparse.ArgumentTypeError(f"expected onnx, got {name!r}")
    return name
