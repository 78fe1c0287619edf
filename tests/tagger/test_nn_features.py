"""The network that reads features: vocabularies of features, its encoders, and its inputs."""

import dataclasses
import json

import pytest
import torch

from bcrf import Structure
from bcrf.tagger.data import FeatureVocabulary
from bcrf.tagger.data.features import character_class, word_shape
from bcrf.tagger.nn import BiLSTM, GatedConvolutions, ModelConfig, Sizes, TaggerModel, collate
from bcrf.tagger.nn import inputs as inputs_module
from bcrf.tagger.nn.inputs import InputReader, VectorWords, Vocabularies
from bcrf.tagger.tasks import Example

WORDS = [["The", "dogs", "ran"], ["the", "dog"], ["dogs"], []]
TINY = ModelConfig(
    features="word",
    feature_width=3,
    context_width=8,
    context_layers=2,
    score_width=6,
    transitions="shared",
)
CONTEXTS = ["cnn", "bilstm"]


def vocabularies(kind: str = "word", vectors: VectorWords | None = None) -> Vocabularies:
    features = FeatureVocabulary.build(WORDS, kind)  # type: ignore[arg-type]
    return Vocabularies(features=features, vectors=vectors)


def build(known: Vocabularies, **changes) -> TaggerModel:
    torch.manual_seed(0)
    config = dataclasses.replace(TINY, **changes)
    return TaggerModel(config, known.sizes(tags=3), Structure.from_labels(["O", "B", "I"], "BIO"))


def scores(model: TaggerModel, reader: InputReader, sentences) -> list[torch.Tensor]:
    """Return the unary scores of each sentence, without padding."""
    chain = model(reader.batch([reader(words) for words in sentences]))
    return [row[: len(words)] for row, words in zip(chain.unary, sentences, strict=True)]


# --------------------------------------------------------------------------------------- vocabulary


def test_the_features_of_a_word():
    known = FeatureVocabulary.build([["iPods"]], "word")
    assert {name: values[0] for name, values in known.values.items()} == {
        "word": "iPods",
        "lower": "ipods",
        "prefix-1": "i",
        "prefix-2": "ip",
        "prefix-3": "ipo",
        "prefix-4": "ipod",
        "suffix-1": "s",
        "suffix-2": "ds",
        "suffix-3": "ods",
        "suffix-4": "pods",
        "suffix-5": "ipods",
        "shape": "xXxx",
    }
    ids = torch.frombuffer(bytearray(known.word_ids("iPods")), dtype=torch.int32)
    assert ids.tolist() == list(range(1, 24, 2))  # each feature has a row for unknown values
    unknown = torch.frombuffer(bytearray(known.word_ids("Ж")), dtype=torch.int32)
    assert unknown.tolist() == list(range(0, 24, 2))
    assert len(known) == 24


def test_the_features_of_a_character():
    known = FeatureVocabulary.build([["a", "b", "c"], ["b", "c"]], "character", min_count=2)
    assert set(known.values["bigram"]) == {"\n\n", "bc", "c\n"}
    (_, b, _) = known.ids(["a", "b", "c"])
    ids = torch.frombuffer(bytearray(b), dtype=torch.int32).tolist()
    first, place = {}, 0
    for name, values in known.values.items():
        first[name] = place
        place += 1 + len(values)

    def row(name: str, value: str) -> int:
        values = known.values[name]
        return first[name] + (values.index(value) + 1 if value in values else 0)

    assert ids == [
        row("character", "b"),
        row("bigram", "ab"),
        row("bigram", "bc"),
        row("trigram", "\nab"),
        row("trigram", "abc"),
        row("trigram", "bc\n"),
        *[row("class", "Ll LATIN")] * 3,
    ]
    assert row("bigram", "ab") == first["bigram"]  # it occurs once, so it is unknown


def test_features_are_known_if_they_are_frequent():
    known = FeatureVocabulary.build(WORDS, "word", min_count=2)
    assert known.values["word"] == ("dogs",)
    assert known.values["lower"] == ("dogs", "the")
    assert FeatureVocabulary.build(WORDS, "word", lowercase=True).word_ids(
        "THE"
    ) == FeatureVocabulary.build(WORDS, "word", lowercase=True).word_ids("the")


@pytest.mark.parametrize(
    "word", ["", "\U0001f600", "e\u0301", "\ud800", "İ", "ß", "١٢", "\n", "a\u200bb"]
)
def test_features_of_unusual_strings(word):
    known = FeatureVocabulary.build([[word or "x"]], "word")
    assert len(known.word_ids(word)) == 4 * known.width
    assert isinstance(word_shape(word), str)
    if len(word) == 1:
        assert isinstance(character_class(word), str)
        assert len(FeatureVocabulary.build([[word]], "character").ids([word])[0]) == 4 * 9


@pytest.mark.parametrize("kind", ["word", "character"])
def test_a_feature_vocabulary_goes_through_json(kind):
    known = FeatureVocabulary.build(WORDS[:2], kind, lowercase=True)
    again = FeatureVocabulary.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again == known
    assert again.ids(["the", "x"]) == known.ids(["the", "x"])
    assert known.ids([]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "letter"}, "kind must be one of word, character"),
        ({"values": []}, "must be a table"),
        ({"values": {"word": ["a"]}}, "the features of a word are word, lower"),
        ({"lowercase": 1}, "lowercase must be true or false"),
        ({"more": 1}, "have the fields kind, values and lowercase"),
    ],
)
def test_errors_about_wrong_feature_vocabularies(change, message):
    values = FeatureVocabulary.build(WORDS, "word").to_dict()
    with pytest.raises(ValueError, match=message):
        FeatureVocabulary.from_dict(values | change)
    twice = values["values"] | {"shape": ["x", "x"]}
    with pytest.raises(ValueError, match="feature shape must be distinct"):
        FeatureVocabulary.from_dict(values | {"values": twice})
    mixed = values["values"] | {"shape": ["x", 3]}
    with pytest.raises(ValueError, match="'shape' must be strings"):
        FeatureVocabulary.from_dict(values | {"values": mixed})


# ----------------------------------------------------------------------------------------- encoders


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("kind", ["word", "character"])
def test_the_scores_of_a_sentence_do_not_depend_on_its_batch(context, kind):
    known = vocabularies(kind)
    model = build(known, features=kind, context=context).eval()
    reader = InputReader(model, known)
    sentences = [["the", "dogs", "saw", "a", "Dog"], [], ["dog"], ["ran", "The", "the"]]
    together = scores(model, reader, sentences)
    for row, words in zip(together, sentences, strict=True):
        (alone,) = scores(model, reader, [words])
        torch.testing.assert_close(row, alone)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("sentences", [[], [[]], [[], []], [["dog"]], [["\U0001f600", "Ж"]]])
def test_batches_without_words_and_with_unknown_words(context, sentences):
    known = vocabularies()
    model = build(known, context=context)
    reader = InputReader(model, known)
    for mode in (model.train, model.eval):
        mode()
        chain = model(reader.batch([reader(words) for words in sentences]))
        longest = max(map(len, sentences), default=0)
        assert chain.unary.shape == (len(sentences), longest, 3)
        assert not chain.unary.isnan().any()
        assert model.decode(chain).shape == (len(sentences), longest)
        model.loss(chain, torch.zeros(len(sentences), longest, dtype=torch.int64)).sum().backward()


def test_convolutions_read_their_neighbours_only():
    torch.manual_seed(0)
    context = GatedConvolutions(width=4, layers=2)
    states, lengths = torch.randn(1, 9, 4), torch.tensor([9])
    changed = states.clone()
    changed[0, 4] += 1
    difference = (context(changed, lengths) - context(states, lengths)).abs().sum(-1)[0]
    assert (difference > 1e-6).nonzero().flatten().tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 30])
def test_dilated_convolutions_read_farther_words(length):
    context = GatedConvolutions(width=4, layers=3, dilation=2)
    assert (context.distances, context.reach) == ([1, 2, 4], 7)
    states = torch.randn(1, length, 4, requires_grad=True)
    place = length // 2
    (gradient,) = torch.autograd.grad(
        context(states, torch.tensor([length]))[0, place].square().sum(), states
    )
    read = gradient[0].abs().sum(-1).nonzero().flatten().tolist()
    assert read == [i for i in range(length) if abs(i - place) <= context.reach]


def test_convolutions_equal_those_of_torch():
    torch.manual_seed(0)
    context = GatedConvolutions(width=4, layers=1)
    states = torch.randn(2, 6, 4)
    weight = context.project[0].weight.view(8, 3, 4).transpose(1, 2)
    convolved = torch.conv1d(states.mT, weight, context.project[0].bias, padding=1).mT
    expected = context.norm[0](states + torch.nn.functional.glu(convolved))
    torch.testing.assert_close(context(states, torch.tensor([6, 6])), expected)


def test_a_bilstm_reads_the_whole_sentence():
    torch.manual_seed(0)
    context = BiLSTM(width=4, layers=1)
    states, lengths = torch.randn(1, 9, 4, requires_grad=True), torch.tensor([9])
    context(states, lengths)[0, 4].sum().backward()
    assert (states.grad.abs().sum(-1) > 0).all()


def test_whole_features_are_dropped_in_training():
    known = vocabularies()
    embeddings = build(known, feature_dropout=0.5).encoder.embeddings.train()
    kept = embeddings._kept(torch.zeros(2, 5, dtype=torch.int64)).view(2, 5, 12, 3)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert (kept == kept[..., :1]).all()


def test_each_distinct_word_is_computed_once():
    known = vocabularies()
    reader = InputReader(build(known), known)
    batch = reader.batch([reader(["dog", "dog"]), reader(["dogs", "dog"])])
    assert batch.features.ids.shape == (2, 12)
    assert batch.features.index.tolist() == [[0, 0], [1, 0]]


def test_the_cache_of_features_is_bounded(monkeypatch):
    monkeypatch.setattr(inputs_module, "_CACHED_WORDS", 3)
    known = vocabularies()
    reader = InputReader(build(known), known)
    for number in range(9):
        reader([f"word{number}"])
    assert reader.cached_words == 3


def test_a_batch_of_words_is_no_batch_of_features():
    with pytest.raises(ValueError, match="pass features to collate"):
        build(vocabularies())(collate([[2, 3]]))
    with pytest.raises(ValueError, match="same number of features"):
        collate(features=[[b"0000", b"00000000"]])


# ------------------------------------------------------------------------------------------ vectors


def test_pretrained_vectors_are_read_beside_the_features():
    vectors = VectorWords(("dogs", "the"), width=2)
    assert [vectors.id(word) for word in ("dogs", "the", "The", "cat")] == [1, 2, 2, 0]
    known = vocabularies(vectors=vectors)
    model = build(known).eval()
    reader = InputReader(model, known)
    before = scores(model, reader, [["Dogs", "cat"]])[0]
    model.encoder.embeddings.load_vectors(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    after = scores(model, reader, [["Dogs", "cat"]])[0]
    assert not torch.equal(before, after)
    assert "encoder.embeddings.vectors" in model.state_dict()
    assert "encoder.embeddings.vectors" not in dict(model.named_parameters())  # not trained
    again = Vocabularies.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again == known


def test_vectors_of_characters():
    known = vocabularies("character", VectorWords(("d",), width=2))
    model = build(known, features="character")
    reader = InputReader(model, known)
    batch = reader.batch([reader(["d", "o"])])
    assert batch.features.ids[:, -1].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"words": ["a"]}, "have the fields words and width"),
        ({"words": "ab", "width": 2}, "must be a list of strings"),
        ({"words": ["a", "a"], "width": 2}, "must be distinct"),
        ({"words": ["a"], "width": 0}, "width"),
    ],
)
def test_errors_about_wrong_words_of_vectors(values, message):
    with pytest.raises(ValueError, match=message):
        VectorWords.from_dict(values)


# ------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 1}, "layers belongs to a network without features"),
        ({"pretrained": "x"}, "pretrained belongs to a network without features"),
        ({"characters": "cnn"}, "characters belongs to a network without features"),
        ({"context": "bilstm", "context_width": 7}, "context_width must be even"),
        ({"features": "none", "vectors": "x.vec"}, "vectors need the network with features"),
        (
            {"context_layers": 10, "context_dilation": 2},
            "context_dilation: with a dilation of 2, expected at most 9 layers, got context_layers",
        ),
        (
            {"context_layers": 10**9, "context_dilation": 10**300},
            "expected at most 1 layers, got context_layers = 1000000000",
        ),
        ({"context": "lstm"}, "context: expected one of cnn, bilstm"),
    ],
)
def test_errors_about_contradictory_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **changes)


def test_a_network_needs_the_sizes_of_its_features():
    with pytest.raises(ValueError, match="feature_rows and features must be at least 1"):
        TaggerModel(TINY, Sizes(tags=3, words=5))


def test_all_words_are_kept_for_scores_of_unknown_words():
    (sentence,) = [("the", "dog", "the")]
    example = Example(sentence, None)  # type: ignore[arg-type]
    known = Vocabularies.build([example], TINY, min_count=2)
    assert "dog" in known.words
    assert known.features.values["word"] == ("the",)
    assert known.sizes(2) == Sizes(2, words=4, feature_rows=len(known.features), features=12)
