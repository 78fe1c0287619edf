"""From words to the inputs of a model, and to batches."""

from __future__ import annotations

import pytest
import torch
from transformers import DataCollatorForTokenClassification

from bcrf.huggingface import CRFDataCollator, encode_words

from .cases import LABELS, SENTENCES, make_model, make_tokenizer

LABEL2ID = {label: tag for tag, label in enumerate(LABELS)}


def test_first_pieces_have_the_labels():
    tokenizer = make_tokenizer()
    words = ["Ada", "Lovelace", "visited", "Turin"]
    inputs = encode_words(tokenizer, words, [1, 2, 0, 3])
    assert tokenizer.convert_ids_to_tokens(inputs["input_ids"]) == (
        ["[CLS]", "Ada", "Love", "##lace", "visit", "##ed", "Tur", "##in", "[SEP]"]
    )
    assert inputs["word_mask"] == [0, 1, 1, 0, 1, 0, 1, 0, 0]
    assert inputs["labels"] == [-100, 1, 2, -100, 0, -100, 3, -100, -100]
    assert inputs["attention_mask"] == [1] * 9
    tags = ["B-PER", "I-PER", "O", "B-LOC"]
    assert encode_words(tokenizer, words, tags, label2id=LABEL2ID) == inputs
    del inputs["labels"]
    assert encode_words(tokenizer, words) == inputs


@pytest.mark.parametrize("words", [[], ["Ada"], ["", "Ada", "\u200b", " ", "\U0001f600", "Ada"]])
def test_no_word_is_lost(words):
    """A word without pieces becomes the unknown piece."""
    inputs = encode_words(make_tokenizer(), words, list(range(len(words))))
    assert sum(inputs["word_mask"]) == len(words)
    assert [label for label in inputs["labels"] if label != -100] == list(range(len(words)))


def test_long_sentences():
    tokenizer = make_tokenizer()
    words = ["Lovelace"] * 20  # 40 pieces, and 2 special ones
    with pytest.raises(ValueError, match="20 words and 42 pieces, more than max_length = 40"):
        encode_words(tokenizer, words)
    assert len(encode_words(tokenizer, words, max_length=42)["input_ids"]) == 42
    inputs = encode_words(tokenizer, words, [0] * 20, truncation=True, max_length=41)
    assert len(inputs["input_ids"]) == 40  # whole words only
    assert sum(inputs["word_mask"]) == 19
    assert inputs["input_ids"][-1] == tokenizer.sep_token_id
    nothing = encode_words(tokenizer, words, truncation=True, max_length=3)
    assert nothing["input_ids"] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    assert len(encode_words(make_tokenizer(int(1e30)), words * 10)["input_ids"]) == 402


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((["Ada"], [1, 2]), {}, "one for each of 1 words, got 2"),
        ((["Ada"], ["B-PER"]), {}, "pass label2id=model.config.label2id"),
        ((["Ada"], ["B-PRE"]), {"label2id": LABEL2ID}, r"labels\[0\]: .*did you mean B-PER"),
    ],
)
def test_wrong_labels_are_errors(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        encode_words(make_tokenizer(), *arguments, **keywords)


def test_a_text_is_not_a_list_of_words():
    with pytest.raises(TypeError, match="expected a list of words, got a str"):
        encode_words(make_tokenizer(), "Ada visited Turin")


def rows() -> list[dict[str, list[int]]]:
    tokenizer = make_tokenizer()
    return [
        encode_words(tokenizer, text.split(), tags.split(), label2id=LABEL2ID)
        for text, tags in SENTENCES
    ]


def test_a_batch_does_not_depend_on_its_padding():
    tokenizer, model = make_tokenizer(), make_model()
    tokenizer.padding_side = "right"
    whole = model(**CRFDataCollator(tokenizer)(rows()))
    losses = []
    for number, row in enumerate(rows()):
        out = model(**CRFDataCollator(tokenizer, pad_to_multiple_of=16)([row]))
        losses.append(out.loss)
        size = len(row["input_ids"])
        assert out.tags.shape[1] % 16 == 0
        assert torch.equal(out.tags[0, :size], whole.tags[number, :size])
        assert bool((out.tags[0, size:] == -100).all())
    torch.testing.assert_close(torch.stack(losses).mean(), whole.loss)


def test_padding_on_the_left():
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    batch = CRFDataCollator(tokenizer)(rows())
    width = batch["input_ids"].shape[1]
    for name, fill in (("input_ids", 0), ("labels", -100), ("word_mask", 0), ("attention_mask", 0)):
        for number, row in enumerate(rows()):
            expected = [fill] * (width - len(row[name])) + row[name]
            assert batch[name][number].tolist() == expected


def test_the_usual_recipe_and_collator_give_the_same():
    tokenizer, model = make_tokenizer(), make_model()
    features = [
        {name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows()
    ]
    usual = DataCollatorForTokenClassification(tokenizer)(features)
    one, two = model(**usual), model(**CRFDataCollator(tokenizer)(rows()))
    assert torch.equal(one.tags, two.tags)
    torch.testing.assert_close(one.loss, two.loss)
    without = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows()]
    assert torch.equal(model(**CRFDataCollator(tokenizer)(without)).tags, one.tags)


def test_uneven_features_are_errors():
    one, two = rows()[:2]
    del two["labels"]
    with pytest.raises(ValueError, match=r"features\[1\] has the keys"):
        CRFDataCollator(make_tokenizer())([one, two])
    one["labels"].pop()
    with pytest.raises(ValueError, match=r"features\[0\]: labels has 8 entries, input_ids has 9"):
        CRFDataCollator(make_tokenizer())([one])
