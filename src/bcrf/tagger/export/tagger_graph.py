"""The whole tagger as one module of tensors: ids of features in, tags out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...chain import LinearChain
from ...decoding import solver_of
from ...inference import Solver
from ...numerics.static_trimming import ReachableInSegments, divides_into_segments, has_tables
from ...structure import Structure
from ..nn import FeatureEncoder, TaggerModel, decoder, parse_decoder, training_solver
from ..nn.batch import Batch, FeatureIds
from ..nn.context import GatedConvolutions
from ..nn.padding import Packing
from ..prediction.calibration import scaled
from ..prediction.tagger import Tagger
from ..tasks import Ner, Pos, Segmentation

__all__ = ["ExportError", "TaggerGraph", "check_exportable", "reads_white_space"]


class ExportError(ValueError):
    """A tagger, or one of its parts, cannot be exported; the message says which and what to do.

    Example (`tagger` as in `Tagger`):
        >>> from bcrf.tagger.export import ExportError, export_onnx
        >>> try:
        ...     export_onnx(tagger, "tagger.onnx")
        ... except ExportError as error:
        ...     print(error)
        the tagger reads words, not features of words; ...
    """


def check_exportable(tagger: Tagger, decoder_name: str) -> None:
    """Raise ExportError unless the tagger can be exported with this decoder."""
    config, encoder, task = tagger.model.config, tagger.model.encoder, tagger.task
    if not isinstance(encoder, FeatureEncoder):
        reads = "the pieces of a pretrained encoder" if config.pretrained else "words"
        raise ExportError(
            f"the tagger reads {reads}, not features of words; only the default network of "
            "`bcrf train` can be exported: train without settings of another network (model.width, "
            "model.layers, model.characters, model.pretrained)"
        )
    if not isinstance(encoder.context, GatedConvolutions):
        raise ExportError(
            "a BiLSTM reads word after word and cannot be exported; train with --model.context cnn"
        )
    if not isinstance(task, Pos | Ner | Segmentation):
        raise ExportError(
            f"the task {task.name} cannot be exported; expected a tagger of the task pos, ner or "
            "segmentation"
        )
    if isinstance(task, Segmentation) and task.spaces == "token":
        raise ExportError(
            "the words of this tagger may hold white space (data.spaces: token), which the graph "
            "cannot read; only taggers with data.spaces: boundary can be exported"
        )
    if parse_decoder(decoder_name).family == "certified":
        raise ExportError(
            f"the decoder {decoder_name} cannot be exported; viterbi gives the same tags, and "
            "bregman-10-relaxed needs no loop over the words"
        )
    rules = task.structure
    is_divided = reads_white_space(tagger)
    if rules is not None and not (divides_into_segments if is_divided else has_tables)(rules):
        raise ExportError(
            "the graph cannot find the tags that the constraints leave without a loop over the "
            f"words; the constraints allow {rules!r}"
        )


def reads_white_space(tagger: Tagger) -> bool:
    """Whether the graph has an input for the white space between characters."""
    return isinstance(tagger.task, Segmentation)


class TaggerGraph(nn.Module):
    """Network and decoder of a tagger, as a function of tensors.

    Args:
        tagger: the tagger, on the CPU.
        decoder_name: the name of the decoder.
        probabilities: whether to return the marginals, too: those of the decoder's solver (for
            Viterbi, of the training objective) at the temperature of the tagger's probabilities.
    """

    def __init__(self, tagger: Tagger, decoder_name: str, probabilities: bool = False) -> None:
        super().__init__()
        check_exportable(tagger, decoder_name)
        self.model = tagger.model
        self.decode = decoder(decoder_name)
        self.temperature = tagger.probability_temperature
        self.solver = _solver(self.model, decoder_name) if probabilities else None

    def forward(
        self, features: Tensor, lengths: Tensor, breaks: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the tags int64 [B, n], -100 after a sentence, and perhaps the marginals [B, n, T].

        Args:
            features: int32 [B, n, F], the ids of the features of each token (see
                `FeatureVocabulary`), and the number of its pretrained vector, if there are any.
            lengths: int32 [B].
            breaks: bool [B, n], True where white space precedes a token; words end there.
        """
        chain = self._chain(features, lengths.long())
        if breaks is not None:
            chain = _divided(chain, breaks)
        tags = self.decode(chain)
        if self.solver is None:
            return (tags,)
        return tags, self.solver(scaled(chain, self.temperature)).tag_marginals

    def _chain(self, features: Tensor, lengths: Tensor) -> LinearChain:
        """Return the chain; unlike in a batch of the tagger, all positions count as words."""
        batch, n, _ = features.shape
        places = torch.arange(batch * n, device=features.device).view(batch, n)
        ids = FeatureIds(features.flatten(0, 1).long(), places)
        states = self.model.encoder(Batch(lengths, features=ids))
        everywhere = Packing((batch, n), None, None, places[:, :-1].flatten())
        chain: LinearChain = self.model.scorer(states, lengths, everywhere)
        return chain


def _divided(chain: LinearChain, breaks: Tensor) -> LinearChain:
    """Return the chain without the tags of words that would cross a break.

    The tag after a break must be one that may start a sentence, the tag before it one that may end
    a sentence. The structure of the result knows the breaks, so that the graph finds the live tags
    without a loop.
    """
    rules = chain.structure
    assert rules is not None
    assert rules.reachable is not None
    segments = ReachableInSegments(rules.reachable, breaks)
    masks = (rules.start, rules.end, rules.follow)
    divided = Structure._unchecked(masks, rules.labels, segments)
    unary = torch.where(segments.live(chain.lengths, chain.max_length), chain.unary, -torch.inf)
    return LinearChain._new(
        unary, chain.raw_transitions, chain.lengths, chain.dtype, divided, chain.finite
    )


def _solver(model: TaggerModel, decoder_name: str) -> Solver:
    """Return the solver whose marginals are the probabilities of the graph."""
    method = parse_decoder(decoder_name)
    if method.finds_best_sequence:
        return training_solver(model.config.objective)
    return solver_of(method)
