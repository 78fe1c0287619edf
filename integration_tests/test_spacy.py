"""The components of bcrf.spacy annotate documents as a tagger tags sentences."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, Span, Token
from spacy.training import Example
from spacy.util import get_words_and_spaces

from bcrf import Tagger
from bcrf.spacy import Segmenter
from bcrf.spacy.segmenter import _tokens
from bcrf.tagger import ModelError, Tokenizer
from bcrf.tagger.data import read

SAMPLES = files("bcrf") / "samples"
FERRY = "The ferry from Piraeus to Naxos was delayed."


def words_of(corpus: str, count: int) -> list[list[str]]:
    return [list(sentence.words) for sentence in read(str(SAMPLES / corpus))][:count]


def pipeline(models: Path, *components: str, **settings: Any) -> spacy.Language:
    nlp = spacy.blank("en")
    for name in components:
        folder = {"bcrf_tagger": "pos", "bcrf_ner": "ner"}[name]
        nlp.add_pipe(name, config={"model": str(models / "runs" / folder), **settings})
    return nlp


def chinese(models: Path, model: str = "zh", **settings: Any) -> spacy.Language:
    folder = str(models / "runs" / model)
    tokenizer = {"@tokenizers": "bcrf_segmenter", "model": folder, **settings}
    return spacy.blank("zh", config={"nlp": {"tokenizer": tokenizer}})


def make_docs(nlp: spacy.Language, sentences: list[list[str]]) -> list[Doc]:
    return [Doc(nlp.vocab, words=words) for words in sentences]


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_parts_of_speech_are_those_of_the_tagger(models: Path, batch_size: int) -> None:
    sentences = words_of("english-dev.conllu", 30)
    expected = Tagger.load(models / "runs/pos", "cpu").tag(sentences, probabilities=True)
    nlp = pipeline(models, "bcrf_tagger")
    docs = list(nlp.pipe(make_docs(nlp, sentences), batch_size=batch_size))
    assert [tuple(token.pos_ for token in doc) for doc in docs] == [x.tags for x in expected]
    for doc, tagged in zip(docs, expected, strict=True):
        found = [token._.tag_probability for token in doc]
        assert found == pytest.approx(tagged.probabilities, abs=1e-5)


def test_entities_are_those_of_the_tagger(models: Path) -> None:
    sentences = words_of("english-ner-dev.conll", 40)
    tagger = Tagger.load(models / "runs/ner", "cpu")
    expected = [
        [(span.start, span.end, span.type, p) for span, p in zip(spans, ps, strict=True)]
        for tagged in tagger.tag_examples(
            tagger.task.annotated([*read(str(SAMPLES / "english-ner-dev.conll"))][:40]),
            probabilities=True,
        )
        for spans, ps in [
            (tagged.task.items(tagged.example, tagged.labels), tagged.item_probabilities)
        ]
    ]
    assert sum(map(len, expected)) > 10
    nlp = pipeline(models, "bcrf_ner")
    for doc, mentions in zip(nlp.pipe(make_docs(nlp, sentences)), expected, strict=True):
        assert [(e.start, e.end, e.label_) for e in doc.ents] == [m[:3] for m in mentions]
        found = [entity._.probability for entity in doc.ents]
        assert found == pytest.approx([m[3] for m in mentions], abs=1e-5)


def test_sentences_are_tagged_one_by_one(models: Path) -> None:
    first, second = words_of("english-dev.conllu", 2)
    nlp = pipeline(models, "bcrf_tagger")
    alone = [
        [t._.tag_probability for t in doc] for doc in nlp.pipe(make_docs(nlp, [first, second]))
    ]
    starts = [True] + [False] * (len(first) - 1) + [True] + [False] * (len(second) - 1)
    together = nlp(Doc(nlp.vocab, words=first + second, sent_starts=starts))
    found = [token._.tag_probability for token in together]
    assert found == pytest.approx(alone[0] + alone[1], abs=1e-5)


def test_white_space_is_left_out(models: Path) -> None:
    nlp = pipeline(models, "bcrf_tagger", "bcrf_ner")
    plain, spaced = nlp(FERRY), nlp("\n" + FERRY.replace(" ", "  ") + " \n")
    words = [token for token in spaced if not token.is_space]
    assert len(words) < len(spaced)
    assert [token.pos_ for token in words] == [token.pos_ for token in plain]
    assert {token.pos_ for token in spaced if token.is_space} == {"SPACE"}
    assert {token._.tag_probability for token in spaced if token.is_space} == {None}
    assert [ent.text for ent in spaced.ents] == [ent.text for ent in plain.ents] != []


@pytest.mark.parametrize("text", ["", " ", "\n\n", "Naxos"])
def test_short_texts(models: Path, text: str) -> None:
    doc = pipeline(models, "bcrf_tagger", "bcrf_ner")(text)
    assert doc.text == text
    assert all(token.pos_ for token in doc)
    assert chinese(models)(text).text == text
    assert chinese(models, "tokenizer")(text).text == text


def test_threshold_leaves_out_what_is_less_probable(models: Path) -> None:
    sentences = words_of("english-ner-dev.conll", 30)
    every = pipeline(models, "bcrf_tagger", "bcrf_ner")
    some = pipeline(models, "bcrf_tagger", "bcrf_ner", threshold=0.9)
    docs = zip(
        every.pipe(make_docs(every, sentences)), some.pipe(make_docs(some, sentences)), strict=True
    )
    dropped = 0
    for all_, kept in docs:
        sure = [e.text for e in all_.ents if e._.probability >= 0.9]
        assert [entity.text for entity in kept.ents] == sure
        for one, other in zip(all_, kept, strict=True):
            assert other.pos_ == (one.pos_ if one._.tag_probability >= 0.9 else "")
            dropped += other.pos_ == ""
    assert dropped


def test_without_probabilities(models: Path) -> None:
    nlp = pipeline(models, "bcrf_tagger", "bcrf_ner", probabilities=False)
    doc = nlp(FERRY)
    assert doc.ents
    assert all(token.pos_ for token in doc)
    assert doc.user_data == {}


def test_entities_that_a_document_has_stay(models: Path) -> None:
    nlp = pipeline(models, "bcrf_ner")
    doc = nlp.make_doc(FERRY)
    doc.set_ents([Span(doc, 3, 5, label="ROUTE")])  # Piraeus to
    assert [(ent.text, ent.label_) for ent in nlp(doc).ents] == [
        ("Piraeus to", "ROUTE"),
        ("Naxos", "LOC"),
    ]
    assert doc.has_annotation("ENT_IOB")


def test_tags_that_are_not_universal_are_fine_grained_tags(models: Path) -> None:
    nlp = pipeline(models, "bcrf_tagger")
    tagger = nlp.get_pipe("bcrf_tagger").model.tagger
    task = tagger.task
    object.__setattr__(task, "labels", tuple(f"{label}-1" for label in task.labels))
    doc = nlp("She  sings")
    assert [(token.tag_, token.pos_) for token in doc] == [
        ("PRON-1", ""),
        ("_SP", ""),
        ("VERB-1", ""),
    ]


def test_scores_of_evaluate(models: Path) -> None:
    nlp = pipeline(models, "bcrf_tagger", "bcrf_ner")
    gold = {"words": ["to", "Naxos"], "pos": ["ADP", "NOUN"], "entities": ["O", "U-LOC"]}
    example = Example.from_dict(Doc(nlp.vocab, words=["to", "Naxos"]), gold)
    scores = nlp.evaluate([example])
    assert (scores["pos_acc"], scores["ents_f"]) == (0.5, 1.0)


def test_labels_are_in_the_description_of_the_pipeline(models: Path) -> None:
    nlp = pipeline(models, "bcrf_tagger", "bcrf_ner")
    assert nlp.meta["labels"]["bcrf_ner"] == ["LOC", "MISC", "ORG", "PER"]
    assert "PROPN" in nlp.meta["labels"]["bcrf_tagger"]


def test_an_error_handler_is_called_with_the_batch(models: Path) -> None:
    nlp = pipeline(models, "bcrf_tagger")
    failed: list[tuple[str, int, str]] = []
    nlp.set_error_handler(lambda name, _, docs, error: failed.append((name, len(docs), str(error))))
    nlp.get_pipe("bcrf_tagger").decoder = "nonsense"
    assert list(nlp.pipe(["one", "two"])) == []
    assert failed[0][:2] == ("bcrf_tagger", 2)
    assert "nonsense" in failed[0][2]


# The tokenizer


def test_words_are_those_of_the_segmentation(models: Path) -> None:
    texts = [sentence.text or "" for sentence in read(str(SAMPLES / "chinese-dev.conllu"))][:30]
    expected = Tagger.load(models / "runs/zh", "cpu").tag(texts, probabilities=True)
    nlp = chinese(models)
    for doc, tagged in zip(nlp.tokenizer.pipe(texts, batch_size=7), expected, strict=True):
        assert doc.text == tagged.sentence.text
        words = [token for token in doc if not token.is_space]
        assert tuple(token.text for token in words) == tagged.words
        assert tuple(token.pos_ for token in words) == tagged.tags
        found = [token._.tag_probability for token in words]
        assert found == pytest.approx(tagged.probabilities, abs=1e-5)


@pytest.mark.parametrize("text", [" 我 买\r\n\n了\u3000 两个 ", "\ufeff我买了。\n", "我\u2028买"])
@pytest.mark.parametrize("model", ["zh", "tokenizer"])
def test_no_character_is_lost(models: Path, model: str, text: str) -> None:
    assert chinese(models, model)(text).text == text


def test_a_tokenizer_for_raw_text_finds_sentences(models: Path) -> None:
    text = f"{FERRY} Maria wasn't there.\n\nWhy not?"
    doc = chinese(models, "tokenizer")(text)
    assert doc.text == text
    expected = Tokenizer.load(models / "runs/tokenizer", "cpu").split(text)
    found = [[t.text for t in sent if not t.is_space] for sent in doc.sents]
    assert found == [list(sentence.words) for sentence in expected]
    assert len(found) == 3


def test_a_tagger_with_a_tokenizer_can_be_the_tokenizer(models: Path, tmp_path: Path) -> None:
    tagger = Tagger.load(models / "runs/pos", "cpu")
    tagger.tokenizer = Tokenizer.load(models / "runs/tokenizer", "cpu")
    tagger.save(tmp_path / "both")
    nlp = spacy.blank("en")
    nlp.tokenizer = Segmenter(nlp.vocab, str(tmp_path / "both"))
    nlp.add_pipe("bcrf_tagger", config={"model": str(tmp_path / "both")})
    words = [tagged.words for tagged in tagger.tag_text(FERRY)]
    assert [tuple(token.text for token in sent) for sent in nlp(FERRY).sents] == words


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "b"], "a b"),
        (["a", "b"], "  a   b\n "),
        (["a", "b"], "ab"),
        (["a"], "a"),
        ([], ""),
        ([], " \n"),
        (["a", "b c"], "a b c "),
    ],
)
def test_tokens_are_those_of_spacy(words: list[str], text: str) -> None:
    spans, start = [], 0
    for word in words:
        start = text.index(word, start)
        spans.append((start, start := start + len(word)))
    forms, spaces, _ = _tokens(text, spans)
    assert (forms, spaces) == get_words_and_spaces(words, text)


# Errors


@pytest.mark.parametrize(
    ("component", "model", "message"),
    [
        (
            "bcrf_ner",
            "pos",
            "holds a model of the task pos; bcrf_ner needs one of ner.*bcrf_tagger",
        ),
        ("bcrf_tagger", "zh", "task segmentation; bcrf_tagger needs one of pos.*bcrf_segmenter"),
        ("bcrf_tagger", "absent", r"absent: there is no such folder.*component bcrf_tagger"),
    ],
)
def test_wrong_models_are_errors_of_add_pipe(
    models: Path, component: str, model: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        spacy.blank("en").add_pipe(component, config={"model": str(models / "runs" / model)})


def test_wrong_models_are_errors_of_the_tokenizer(models: Path) -> None:
    with pytest.raises(
        ModelError, match="bcrf_segmenter needs one of segmentation or tokenization"
    ):
        chinese(models, "pos")
    with pytest.raises(ModelError, match="there is no such folder"):
        chinese(models, "absent")


def test_the_tokenizer_is_no_component() -> None:
    message = "is a tokenizer, which creates documents.*spacy.blank.'xx', config=.*'runs/ja'"
    with pytest.raises(ValueError, match=message):
        spacy.blank("xx").add_pipe("bcrf_segmenter", config={"model": "runs/ja"})


def test_a_component_without_a_model_says_so() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("bcrf_tagger")
    with pytest.raises(ModelError, match="bcrf_tagger has no model; set `model` in its config"):
        nlp("text")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 2.0}, "threshold must be a number from 0 to 1"),
        ({"decoder": "nonsense"}, "nonsense"),
        ({"device": "nonsense"}, "nonsense"),
    ],
)
def test_wrong_settings_are_errors_of_add_pipe(
    models: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline(models, "bcrf_tagger", **settings)


def test_an_attribute_of_the_same_name_is_not_overwritten(models: Path) -> None:
    old = Token.get_extension("tag_probability") if Token.has_extension("tag_probability") else None
    Token.set_extension("tag_probability", getter=lambda token: 1.0, force=True)
    try:
        with pytest.raises(ValueError, match=r"Token._.tag_probability is already defined"):
            pipeline(models, "bcrf_tagger")
        pipeline(models, "bcrf_tagger", probabilities=False)
    finally:
        Token.remove_extension("tag_probability")
        if old is not None:
            Token.set_extension("tag_probability", default=old[0])


def test_spacy_pipelines_of_others_load_no_tagger() -> None:
    """spaCy imports all components of the environment whenever it creates a pipeline."""
    program = """
        import sys, spacy
        from spacy.tokens import Span
        spacy.blank("en")
        assert "bcrf.spacy" in sys.modules
        assert not [n for n in sys.modules if n.startswith(("bcrf.tagger", "bcrf.kernels"))]
        assert not Span.has_extension("probability")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
