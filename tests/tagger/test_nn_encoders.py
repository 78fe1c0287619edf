"""Encoders: the states of a sentence do not depend on its batch; dropout and unknown words."""

import pytest
import torch
from torch import Tensor, nn

from bcrf.tagger.nn import (
    PADDING,
    UNKNOWN,
    Batch,
    CharacterCNN,
    SelfAttentiveEncoder,
    WordEmbeddings,
    collate,
)
from bcrf.tagger.nn.attention import sinusoids
from bcrf.tagger.nn.dropout import Dropout

WORDS = [[5, 6, 7, 5, 9], [], [3], [4, 4, 8]]
LETTERS = [[[2, 3], [4], [5, 6, 7, 8, 9], [2, 3], [3]], [], [[9, 9, 9]], [[4], [4], []]]


def embeddings(characters: bool = False, **settings: float) -> WordEmbeddings:
    cnn = CharacterCNN(10, 4, 3, 8) if characters else None
    return WordEmbeddings(10, 8, cnn, **settings)


def encoders() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "embeddings": embeddings(),
        "characters": embeddings(characters=True),
        "attention": SelfAttentiveEncoder(embeddings(), 2, 2, 16),
        "attention and characters": SelfAttentiveEncoder(embeddings(characters=True), 1, 4, 16),
    }


def batch_of(chosen: list[int]) -> Batch:
    return collate([WORDS[i] for i in chosen], [LETTERS[i] for i in chosen])


@pytest.mark.parametrize("name", encoders())
def test_states_in_a_batch_equal_those_of_single_sentences(name):
    encoder = encoders()[name].double()
    together = encoder(batch_of([0, 1, 2, 3]))
    assert together.shape == (4, 5, 8)
    for i, words in enumerate(WORDS):
        alone = encoder(batch_of([i]))
        assert alone.shape == (1, len(words), 8)
        torch.testing.assert_close(together[i, : len(words)], alone[0])


@pytest.mark.parametrize("name", encoders())
def test_gradients_do_not_come_from_padding(name):
    """The gradients are not NaN if a sentence is empty."""
    found = []
    for chosen in ([0, 3], [0, 1, 3, 1]):
        encoder = encoders()[name].double()
        batch = batch_of(chosen)
        inside = torch.arange(5) < batch.lengths.unsqueeze(1)
        encoder(batch)[inside].square().sum().backward()
        found.append({n: p.grad.to_dense() for n, p in encoder.named_parameters()})
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", encoders())
@pytest.mark.parametrize("chosen", [[], [1], [1, 1]])
def test_an_empty_batch_is_encoded(name, chosen):
    assert encoders()[name](batch_of(chosen)).shape == (len(chosen), 0, 8)


def test_word_vectors_are_the_maximum_of_a_convolution_over_characters():
    torch.manual_seed(1)
    cnn = CharacterCNN(10, 4, 5, 6).double()
    found = cnn(collate(None, LETTERS).spellings)
    conv = nn.Conv1d(4, 6, 5, padding=2).double()
    conv.load_state_dict(cnn.convolution.state_dict())
    for sentence, letters in enumerate(LETTERS):
        for word, ids in enumerate(letters):
            one = cnn.embedding(torch.tensor(ids or [PADDING])).T.unsqueeze(0)
            expected = conv(one).amax(-1).squeeze(0)
            torch.testing.assert_close(found[sentence, word], expected)


def test_equal_words_have_one_spelling():
    spellings = collate(None, LETTERS).spellings
    assert len(spellings.sizes) == 1 + 5  # the padding, which is also the word without letters
    assert int(spellings.sizes.sum()) == len(spellings.characters)
    assert spellings.index[0, 0] == spellings.index[0, 3] != spellings.index[0, 1]
    assert spellings.index[3].tolist() == [int(spellings.index[0, 1])] * 2 + [0] * 3


def test_a_very_long_word_costs_its_length_only():
    """In a padded tensor [words, letters, width] this would be 26 GB."""
    cnn = CharacterCNN(10, 4, 3, 64)
    letters = [[[2] * 50_000] + [[3]] * 2000]
    assert cnn(collate(None, letters).spellings).shape == (1, 2001, 64)


def test_attention_sees_order_and_context():
    torch.manual_seed(0)
    encoder = SelfAttentiveEncoder(embeddings(), 1, 2, 16).double()
    forward, backward = encoder(collate([[2, 3, 4]])), encoder(collate([[4, 3, 2]]))
    assert not torch.allclose(forward, backward.flip(1), atol=1e-4)
    other = encoder(collate([[2, 3, 5]]))
    assert not torch.allclose(forward[0, 0], other[0, 0], atol=1e-4)


def attention_by_hand(layer: nn.Module, states: Tensor, lengths: list[int]) -> Tensor:
    """Compute one layer on a batch, sentence by sentence and head by head."""
    out = states.clone()
    for b, length in enumerate(lengths):
        x = states[b, :length]
        q, k, v = layer.queries_keys_values(layer.attention_norm(x)).chunk(3, -1)
        heads = []
        for h in range(layer.heads):
            size = x.shape[1] // layer.heads
            part = slice(h * size, (h + 1) * size)
            weights = torch.softmax(q[:, part] @ k[:, part].T / size**0.5, -1)
            heads.append(weights @ v[:, part])
        x = x + layer.mix(torch.cat(heads, -1))
        out[b, :length] = x + layer.down(torch.relu(layer.up(layer.network_norm(x))))
    return out


def test_a_layer_equals_its_formula():
    torch.manual_seed(0)
    layer = SelfAttentiveEncoder(embeddings(), 1, 2, 16).double().layers[0]
    states, lengths = torch.randn(3, 5, 8, dtype=torch.float64), [5, 1, 3]
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    found, expected = layer(states, mask), attention_by_hand(layer, states, lengths)
    torch.testing.assert_close(found[mask], expected[mask])


@pytest.mark.slow
def test_attention_over_ten_thousand_words():
    torch.manual_seed(0)
    encoder = SelfAttentiveEncoder(embeddings(), 1, 2, 16)
    with torch.inference_mode():
        states = encoder(collate([[2] * 10_000]))
    assert bool(states.isfinite().all())
    # All words are equal, so that states differ only by their positions.
    assert not torch.allclose(states[0, 0], states[0, 9_999], atol=1e-4)


def test_positions_tell_ten_thousand_words_apart():
    waves = sinusoids(10_000, 768)
    assert waves.shape == (10_000, 768)
    torch.testing.assert_close(waves[0], torch.tensor([0.0, 1.0]).repeat(384))
    torch.testing.assert_close(waves[:, 0], torch.arange(10_000).sin())
    assert float(torch.cdist(waves[::97], waves[::97]).fill_diagonal_(9).min()) > 1


def test_unknown_words_in_training():
    torch.manual_seed(0)
    encoder = embeddings(unknown_rate=0.25)
    batch = collate([[7] * 400, [7] * 300])
    unknown, known = encoder.table.weight[UNKNOWN], encoder.table.weight[7]
    states = encoder(batch)
    lost = (states == unknown).all(-1)
    assert 0.2 < float(lost[0].float().mean()) < 0.3
    assert torch.equal(states[0][~lost[0]], known.expand(int((~lost[0]).sum()), -1))
    assert not states[1, 300:].any()  # padding is not replaced by the unknown word
    encoder.eval()
    assert bool((encoder(batch)[0] == known).all())


def test_unknown_words_keep_their_characters():
    torch.manual_seed(0)
    encoder = embeddings(characters=True, unknown_rate=0.999999)
    batch = collate([[7, 8]], [[[2, 3], [4]]])
    letters = encoder.characters(batch.spellings)
    torch.testing.assert_close(encoder(batch), letters + encoder.table.weight[UNKNOWN])


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75])
def test_dropout_keeps_its_rate_and_the_mean(rate):
    torch.manual_seed(0)
    dropout = Dropout(rate)
    states = torch.ones(101, 1003, requires_grad=True)
    out = dropout(states)
    lost = out == 0
    # Five standard deviations, for all entries and for each of the four that share a draw.
    for some in (lost, *(lost.flatten()[i::4] for i in range(4))):
        spread = (rate * (1 - rate) / some.numel()) ** 0.5
        assert abs(float(some.float().mean()) - rate) < 5 * spread
    torch.testing.assert_close(
        out[~lost], torch.full_like(out[~lost], 1 / (1 - rate)), rtol=1e-4, atol=0
    )
    out.sum().backward()
    torch.testing.assert_close(states.grad, out.detach())
    assert bool((dropout(states) != out).any())
    dropout.eval()
    assert dropout(states) is states


def test_dropout_of_neighbours_is_independent():
    torch.manual_seed(0)
    lost = (Dropout(0.5)(torch.ones(400_000)) == 0).double()
    for lag in (1, 2, 3, 4, 8):
        assert abs(float(torch.corrcoef(torch.stack([lost[:-lag], lost[lag:]]))[0, 1])) < 0.01


def test_dropout_follows_the_seed():
    torch.manual_seed(3)
    first = Dropout(0.3)(torch.ones(50))
    torch.manual_seed(3)
    assert torch.equal(first, Dropout(0.3)(torch.ones(50)))


def test_errors_name_the_missing_inputs_of_a_batch():
    with pytest.raises(ValueError, match="reads words, but the batch has none"):
        embeddings()(collate(None, LETTERS))
    with pytest.raises(ValueError, match="reads characters, but the batch has none"):
        embeddings(characters=True)(collate(WORDS))
    with pytest.raises(ValueError, match="all are None"):
        collate()
    with pytest.raises(ValueError, match=r"words has lengths \[1\], characters has \[2\]"):
        collate([[4]], [[[4], [5]]])
    with pytest.raises(ValueError, match="rate must be in"):
        Dropout(1.0)


def test_a_batch_moves_with_all_its_tensors():
    batch = batch_of([0, 1]).to("meta")
    assert batch.lengths.is_meta
    assert batch.words.is_meta
    assert batch.spellings.characters.is_meta
    assert batch.spellings.index.is_meta
