"""Word pieces in windows, and pretrained encoders: tiny ones with random weights, offline."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcrf.tagger.nn import (
    EncoderParts,
    Frame,
    ModelConfig,
    Pieces,
    PretrainedEncoder,
    Sizes,
    TaggerModel,
    collate,
)
from bcrf.tagger.nn.pieces import spans

FRAME = Frame(size=8, before=(101,), after=(102,), padding=0)


# ------------------------------------------------------------------------------------------ windows


@given(st.integers(0, 60), st.integers(2, 12))
def test_spans_cover_everything_and_overlap_by_half(total, size):
    cuts = spans(total, size)
    assert sorted({i for start, stop in cuts for i in range(start, stop)}) == list(range(total))
    assert all(stop - start == min(size, total) for start, stop in cuts)
    for (start, stop), (following, _) in itertools.pairwise(cuts):
        assert start < following
        assert stop - following >= size // 2


def edge_distance(piece: int, start: int, stop: int, total: int) -> float:
    """Return the context on the shorter side; the ends of the sentence are not edges."""
    if not start <= piece < stop:
        return -1
    left = float("inf") if start == 0 else piece - start
    right = float("inf") if stop == total else stop - 1 - piece
    return min(left, right)


@given(st.lists(st.lists(st.integers(1, 9), max_size=40), max_size=4))
def test_each_word_is_read_farthest_from_an_edge(sizes):
    """`sizes` has the number of pieces of each word; pieces are numbered over all sentences."""
    sentences, number = [], 1000
    for words in sizes:
        starts = [sum(words[:i]) for i in range(len(words))]
        sentences.append(Pieces(tuple(range(number, number + sum(words))), tuple(starts)))
        number += sum(words)
    windows = FRAME.windows(sentences)
    assert windows.lengths.tolist() == [len(words) for words in sizes]
    assert windows.pieces.shape[1] <= FRAME.size
    flat = windows.pieces.flatten()
    rows = [row[real].tolist() for row, real in zip(windows.pieces, windows.mask, strict=True)]
    assert all(row[0] == 101 and row[-1] == 102 for row in rows)
    assert not windows.pieces[~windows.mask].any()
    for b, sentence in enumerate(sentences):
        total = len(sentence.ids)
        cuts = spans(total, FRAME.capacity)
        for i, piece in enumerate(sentence.first):
            place = int(windows.index[b, i])
            assert int(flat[place]) == sentence.ids[piece]
            row = rows[place // windows.pieces.shape[1]]
            start = sentence.ids.index(row[1])
            best = max(edge_distance(piece, *cut, total) for cut in cuts)
            assert edge_distance(piece, start, start + len(row) - 2, total) == best
        assert not windows.index[b, len(sentence) :].any()


def test_a_window_needs_room_for_a_sentence():
    with pytest.raises(ValueError, match=r"at least 4, because 2 of its pieces are special; got 3"):
        Frame(3, (101,), (102,), 0)


# ------------------------------------------------------------------------------------------ encoder

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##a", "##b", "##c", "the", "cat"]
ZERO_WIDTH = "​"  # nothing is left of it


def tokenizer(limit: int = 12) -> Any:
    """WordPiece, whose files ask for truncation and padding, as those of some encoders do."""
    ids = {piece: i for i, piece in enumerate(VOCABULARY)}
    core = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    core.normalizer = tokenizers.normalizers.BertNormalizer()
    core.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    core.enable_truncation(4)
    core.enable_padding(length=6, pad_token="[PAD]")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=limit,
    )


def bert(positions: int = 16) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=positions,
    )
    return transformers.BertModel(config)


def encoder(**settings: Any) -> PretrainedEncoder:
    return PretrainedEncoder(bert(), tokenizer(), **settings).eval()


def encode(model: PretrainedEncoder, sentences: list[list[str]]) -> torch.Tensor:
    pieces = [model.pieces(words) for words in sentences]
    return model(collate(windows=model.windows(pieces)))


def test_pieces_of_words():
    model = encoder()
    pieces = model.pieces(["the", "abc", ZERO_WIDTH, "Cat", "x", ""])
    assert [VOCABULARY[i] for i in pieces.ids] == [
        *("the", "a", "##b", "##c", "[UNK]", "cat", "[UNK]", "[UNK]")
    ]
    assert pieces.first == (0, 1, 4, 5, 6, 7)
    assert model.pieces([]) == Pieces((), ())


def test_states_are_those_of_first_pieces():
    """Compared with the bare transformer on one sentence, special pieces included."""
    model = encoder()
    found = encode(model, [["the", "abc", "cat"], [], ["cat"]])
    assert found.shape == (3, 3, 8)
    states = model.module(torch.tensor([[2, 10, 4, 8, 9, 11, 3]])).last_hidden_state[0]
    torch.testing.assert_close(found[0], states[[1, 2, 5]])
    alone = model.module(torch.tensor([[2, 11, 3]])).last_hidden_state[0]
    torch.testing.assert_close(found[2, 0], alone[1])


def test_long_sentences_are_encoded_in_windows():
    model = encoder()
    words = (["the", "cat", "a", "abc", "b"] * 7)[:33]
    found = encode(model, [words, ["cat"]])
    ids = torch.tensor(model.pieces(words).ids)
    first = model.pieces(words).first
    assert len(ids) > 3 * 12
    cuts = spans(len(ids), 10)
    for i, piece in enumerate(first):
        start, stop = max(cuts, key=lambda cut: edge_distance(piece, *cut, len(ids)))
        window = torch.cat([torch.tensor([2]), ids[start:stop], torch.tensor([3])])
        states = model.module(window.unsqueeze(0)).last_hidden_state[0]
        torch.testing.assert_close(found[0, i], states[1 + piece - start])


def test_windows_are_encoded_in_groups(monkeypatch):
    model = encoder()
    sentences = [["the", "cat"] * 9, ["abc"], [], ["a", "b", "c"]]
    expected = encode(model, sentences)
    monkeypatch.setattr("bcrf.tagger.nn.pretrained._PIECES", 25)
    torch.testing.assert_close(encode(model, sentences), expected)


def test_an_empty_batch_is_encoded():
    model = encoder()
    assert encode(model, []).shape == (0, 0, 8)
    assert encode(model, [[], []]).shape == (2, 0, 8)
    with pytest.raises(ValueError, match="reads pieces, but the batch has none"):
        model(collate([[1]]))


def test_the_window_size_is_the_smallest_limit():
    assert encoder().frame.size == 12
    assert PretrainedEncoder(bert(), tokenizer(limit=10**30)).frame.size == 16
    assert encoder(window=6).frame == Frame(6, (2,), (3,), 0)
    with pytest.raises(ValueError, match="window must be at most 12 for this encoder, got 13"):
        encoder(window=13)


def test_positions_that_start_after_the_padding():
    """RoBERTa numbers positions from padding_idx + 1: two of its 18 cannot be used."""
    config = transformers.RobertaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=18,
        pad_token_id=1,
    )
    model = PretrainedEncoder(transformers.RobertaModel(config), tokenizer(limit=10**30)).eval()
    assert model.frame.size == 16
    assert bool(encode(model, [["the", "cat"] * 30]).isfinite().all())


def test_all_parameters_have_a_gradient():
    model = encoder()
    encode(model, [["the", "cat"]]).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert model.module.embeddings.word_embeddings.weight.grad.is_sparse


def test_unsuitable_encoders_are_errors():
    module, reader = bert(), tokenizer()
    module.config.is_encoder_decoder = True
    with pytest.raises(ValueError, match="expected an encoder, got the encoder-decoder model bert"):
        PretrainedEncoder(module, reader)

    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="fast tokenizer"):
        PretrainedEncoder(bert(), Slow())


# -------------------------------------------------------------------------------------------- files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of an encoder, as a download would leave it."""
    bert().save_pretrained(tmp_path / "encoder")
    tokenizer().save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


def test_a_model_is_rebuilt_without_the_original(folder, tmp_path):
    config = ModelConfig(pretrained=str(folder), window=9, score_width=4)
    model = TaggerModel(config, Sizes(tags=3)).eval()
    words = [["the", "cat", "abc"] * 5, ["cat"]]

    def chain(some: TaggerModel) -> Any:
        pieces = [some.encoder.pieces(sentence) for sentence in words]
        return some(collate(windows=some.encoder.windows(pieces)))

    expected = chain(model)
    reference = bert().embeddings.word_embeddings.weight
    assert torch.equal(model.encoder.module.embeddings.word_embeddings.weight, reference)

    model.save_encoder(tmp_path / "saved")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for file in folder.iterdir():
        file.unlink()
    again = TaggerModel(
        config, Sizes(tags=3), encoder_parts=EncoderParts.read(tmp_path / "saved")
    ).eval()
    again.load_state_dict(weights)
    assert not list((tmp_path / "saved").glob("*.safetensors"))
    assert torch.equal(chain(again).unary, expected.unary)
    assert torch.equal(chain(again).transitions, expected.transitions)


def test_a_missing_encoder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for load in (PretrainedEncoder.load, EncoderParts.read):
        with pytest.raises(OSError, match=r"pretrained: cannot load .*nowhere"):
            load(str(tmp_path / "nowhere"))


def test_without_transformers_the_error_names_the_extra():
    """All other parts of the package work without transformers."""
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "from bcrf.tagger.nn import ModelConfig, Sizes, TaggerModel\n"
        "TaggerModel(ModelConfig(width=4), Sizes(tags=2, words=3))\n"
        "TaggerModel(ModelConfig(pretrained='x'), Sizes(tags=2))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 1
    assert "pip install '.[pretrained]'" in result.stderr.splitlines()[-1]
