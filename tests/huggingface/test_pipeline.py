"""The pipeline: words, entities, true probabilities, windows."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForTokenClassification, BertForTokenClassification, pipeline

import bcrf
from bcrf.huggingface import CRFTokenClassificationPipeline, mentions, split_words
from bcrf.huggingface.mentions import mention_probabilities
from bcrf.spans import find_spans

from .cases import ENCODERS, LAYERS, make_model, make_tokenizer

TEXT = "Ada Lovelace visited Turin . Turing lived in New York far from Manchester"
LONG = " ".join([TEXT] * 20)


def make_pipeline(**settings: object) -> CRFTokenClassificationPipeline:
    return CRFTokenClassificationPipeline(model=make_model(**settings), tokenizer=make_tokenizer())


# ---------------------------------------------------------------------- probabilities of mentions

SCHEMES = {
    "BIO": ["O", "B-X", "I-X", "B-Y", "I-Y"],
    "IOB1": ["O", "B-X", "I-X", "I-Y", "B-Y"],
    "BIOES": ["O", "B-X", "I-X", "E-X", "S-X"],
}


def enumerated(layer: bcrf.ChainLayer, scores: torch.Tensor, labels: list[str]) -> dict:
    """Return the probability of each mention: a sum over all tag sequences."""
    sequences = torch.tensor(list(itertools.product(range(len(labels)), repeat=len(scores))))
    copies = scores.expand(len(sequences), -1, -1)
    found: dict = {}
    for tags, p in zip(
        sequences.tolist(), layer.sequence_probability(copies, sequences).tolist(), strict=True
    ):
        for span in find_spans([labels[tag] for tag in tags]):
            found[span] = found.get(span, 0.0) + p
    return found


@pytest.mark.parametrize("rules", ["none", "hard", "soft"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", [bcrf.ExactCRF, bcrf.BregmanCRF])
def test_probabilities_are_sums_over_sequences(kind, scheme, rules):
    labels = SCHEMES[scheme]
    structure = None if rules == "none" else bcrf.Structure.from_labels(labels, scheme)
    torch.manual_seed(3)
    layer = kind(5, constraints=structure, penalty=1.5 if rules == "soft" else None)
    torch.nn.init.normal_(layer.transitions)
    for n in (1, 2, 4):
        scores = torch.randn(n, 5)
        with torch.no_grad():
            expected = enumerated(layer, scores, labels)
            spans = sorted(expected)
            found = mention_probabilities(layer, scores, labels, spans)
        assert len(spans) >= n
        assert found == pytest.approx([expected[span] for span in spans], abs=2e-5)
        # The same, for each mention by itself.
        alone = [mention_probabilities(layer, scores, labels, [span])[0] for span in spans]
        assert alone == pytest.approx(found, abs=1e-6)


def test_blocks_give_the_probabilities_of_the_whole(monkeypatch):
    labels = SCHEMES["BIO"]
    torch.manual_seed(0)
    layer = bcrf.ExactCRF(5, constraints=bcrf.Structure.from_labels(labels, "BIO"))
    scores = 3 * torch.randn(700, 5)
    with torch.no_grad():
        tags = layer.decode_tensor(scores.unsqueeze(0))[0]
        spans = find_spans([labels[tag] for tag in tags.tolist()])
        whole = mention_probabilities(layer, scores, labels, spans)
        marginals = mentions.tag_probabilities(layer, scores, tags)
        monkeypatch.setattr(mentions, "BLOCK_WORDS", 50)
        assert mention_probabilities(layer, scores, labels, spans) == pytest.approx(whole, abs=1e-6)
        assert mentions.tag_probabilities(layer, scores, tags) == pytest.approx(marginals, abs=1e-6)
    assert len(whole) > 100
    assert len(marginals) == 700


# ------------------------------------------------------------------------------------- the output


@pytest.mark.parametrize("layer", LAYERS)
def test_entities_are_the_mentions_of_the_layer(layer):
    find = make_pipeline(layer=layer)
    found = find(TEXT)
    model, tokenizer = find.model, find.tokenizer
    encoded = tokenizer(TEXT.split(), is_split_into_words=True, return_tensors="pt")
    words = [encoded.word_ids().index(word) for word in range(len(TEXT.split()))]
    with torch.no_grad():
        scores = model.emissions(encoded["input_ids"], encoded["attention_mask"])[:, words]
        (tags,) = model.crf.decode(scores)
    spans = find_spans([model.config.id2label[tag] for tag in tags])
    assert len(found) == len(spans) >= 2
    offsets = split_words(TEXT)
    for entity, span in zip(found, spans, strict=True):
        assert entity["entity_group"] == span.type
        assert (entity["start"], entity["end"]) == (
            offsets[span.start][0],
            offsets[span.end - 1][1],
        )
        assert entity["word"] == TEXT[entity["start"] : entity["end"]]
        assert 0 < entity["score"] <= 1


def test_words_with_their_marginals():
    find = make_pipeline()
    found = find(TEXT, aggregation_strategy="none", ignore_labels=[])
    assert [word["word"] for word in found] == TEXT.split()
    assert [word["index"] for word in found] == list(range(len(TEXT.split())))
    assert {"B-PER", "B-LOC", "O"} & {word["entity"] for word in found}
    some = find(TEXT, aggregation_strategy="none", ignore_labels=["O", "B-PER"])
    assert some == [word for word in found if word["entity"] not in ("O", "B-PER")]


def test_labels_without_a_scheme_are_words():
    find = make_pipeline(labels=["NOUN", "VERB", "ADP"], scheme=None)
    found = find(TEXT)
    assert [word["word"] for word in found] == TEXT.split()
    with pytest.raises(ValueError, match="needs labels with a tag scheme"):
        find(TEXT, aggregation_strategy="simple")


def test_lists_of_words_equal_the_text():
    find = make_pipeline()
    assert find([TEXT.split()], is_split_into_words=True) == [find(TEXT)]
    joined = find([TEXT.split()], is_split_into_words=True, delimiter="")[0]
    text = TEXT.replace(" ", "")
    assert [text[x["start"] : x["end"]] for x in joined] == [
        x["word"].replace(" ", "") for x in find(TEXT)
    ]


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b", "."])
def test_texts_without_much(text):
    find = make_pipeline()
    words = find(text, aggregation_strategy="none", ignore_labels=[])
    assert [word["word"] for word in words] == text.split()[: len(words)]
    assert find(["Ada", text, "Ada"])[1] == find(text)
    assert find([[]], is_split_into_words=True) == [[]]


def test_an_own_division_into_words():
    find = make_pipeline()

    def spaces(text: str) -> list[tuple[int, int]]:
        return [(i, i + 1) for i, character in enumerate(text) if character != " "]

    found = find("Ada s", split_words=spaces, aggregation_strategy="none", ignore_labels=[])
    assert [word["word"] for word in found] == list("Adas")
    for wrong in ([(0, 9)], [(1, 1)], [(2, 3), (1, 2)], [(-1, 2)]):
        with pytest.raises(ValueError, match="split_words: word"):
            find("Ada", split_words=lambda text, wrong=wrong: wrong)


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_split_words_covers_all_but_white_space(text):
    offsets = split_words(text)
    rest = list(text)
    last = 0
    for start, end in offsets:
        assert last <= start < end
        last = end
        rest[start:end] = " " * (end - start)
    assert not "".join(rest).strip()


# ---------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("stride", [None, 0, 5, 35])
def test_every_word_of_a_long_text_is_decided_once(encoder, batch_size, stride):
    find = make_pipeline(encoder=encoder)
    found = find(
        LONG,
        stride=stride,
        batch_size=batch_size,
        aggregation_strategy="none",
        ignore_labels=[],
    )
    assert [(word["start"], word["end"]) for word in found] == split_words(LONG)


def test_an_entity_may_cross_the_edge_of_a_window():
    """The CRF decodes the whole text: the scores are those of the windows, the tags are not."""
    find = make_pipeline()
    with torch.no_grad():
        find.model.classifier.weight.zero_()
        find.model.classifier.bias.copy_(torch.tensor([0.0, 1.0, 3.0, -9.0, -9.0]))
    (entity,) = find(LONG, stride=0)
    assert (entity["start"], entity["end"]) == (0, len(LONG))


def test_windows_do_not_matter_if_the_encoder_reads_single_pieces():
    find = make_pipeline()
    encoder = find.model.encoder
    with torch.no_grad():
        encoder.embeddings.position_embeddings.weight.zero_()
        for layer in encoder.encoder.layer:
            layer.attention.output.dense.weight.zero_()
    whole = find(LONG)
    assert len(whole) > 20
    for window, stride in ((10, 0), (10, 7), (21, None)):
        found = find(LONG, window=window, stride=stride)
        assert [x | {"score": 0} for x in found] == [x | {"score": 0} for x in whole]
        assert [x["score"] for x in found] == pytest.approx([x["score"] for x in whole], abs=1e-4)


def test_half_precision_models():
    find = CRFTokenClassificationPipeline(model=make_model().bfloat16(), tokenizer=make_tokenizer())
    assert all(math.isfinite(entity["score"]) for entity in find(LONG))


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"stride": 38}, ValueError, r"stride must be in 0\.\.37"),
        ({"stride": -1}, ValueError, "stride must be at least 0"),
        ({"stride": 1.5}, TypeError, "stride must be an int"),
        ({"window": 41}, ValueError, "window must be at most 40"),
        ({"window": 3}, ValueError, "window must be at least 4"),
        ({"aggregation_strategy": "max"}, ValueError, "no pieces to aggregate"),
        ({"ignore_labels": "O"}, TypeError, "expected a list of labels"),
        ({"offset_mapping": [(0, 1)]}, ValueError, "offset_mapping: not supported"),
        ({"strides": 3}, TypeError, "strides"),
    ],
)
def test_wrong_arguments_are_errors(keywords, error, message):
    with pytest.raises(error, match=message):
        make_pipeline()(LONG, **keywords)


def test_wrong_inputs_are_errors():
    find = make_pipeline()
    with pytest.raises(TypeError, match="expected a text, got int"):
        find([3])
    with pytest.raises(TypeError, match="expected a list of words"):
        find([["Ada", 3]], is_split_into_words=True)


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="expected a CRFForTokenClassification, got Bert"):
        CRFTokenClassificationPipeline(
            model=BertForTokenClassification(ENCODERS["bert"]), tokenizer=make_tokenizer()
        )


def test_a_saved_model_is_loaded_by_the_factory(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    find = pipeline(
        "token-classification",
        model=str(tmp_path),
        pipeline_class=CRFTokenClassificationPipeline,
        stride=3,
    )
    assert find(LONG) == make_pipeline()(LONG, stride=3)
    assert AutoModelForTokenClassification.from_pretrained(tmp_path).config.scheme == "IOB2"
