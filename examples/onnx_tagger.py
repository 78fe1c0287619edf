"""Tag sentences with a file that `bcrf export` has written, without torch and without bcrf.

    echo "Ada visited Turin again ." | python examples/onnx_tagger.py tagger.onnx

Each line of the input is a sentence: words between spaces. A tagger of the task segmentation reads
the characters of a line. Needs onnxruntime and numpy.
"""

import bisect
import itertools
import json
import sys

import numpy as np
import onnxruntime


def letter_kind(letter):
    tests = {"X": letter.isupper(), "x": letter.islower(), "d": letter.isdigit()}
    return next((kind for kind, true in tests.items() if true), "c" if letter.isalpha() else letter)


def word_features(word):
    word = word.lower() if about["features"]["lowercase"] else word
    affixes = [word[:k].lower() for k in range(1, 5)] + [word[-k:].lower() for k in range(1, 6)]
    runs = ("".join(run)[:2] for _, run in itertools.groupby(map(letter_kind, word)))
    return [word, word.lower(), *affixes, "".join(runs)]


def character_features(text):
    """Return the character, n-grams that contain it and classes, for each but two at both ends."""
    ranges = about["character_classes"]
    places = [bisect.bisect(ranges, [ord(x), sys.maxunicode + 1]) - 1 for x in text]
    known = [
        kind if last >= ord(x) else None
        for x, (_, last, kind) in zip(text, map(ranges.__getitem__, places), strict=True)
    ]
    grams = [[text[i], text[i - 1 : i + 1], text[i : i + 2]] for i in range(2, len(text) - 2)]
    return [
        [*grams[i - 2], *(text[j : j + 3] for j in (i - 2, i - 1, i)), *known[i - 1 : i + 2]]
        for i in range(2, len(text) - 2)
    ]


session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["bcrf"])
is_text = about["features"]["kind"] == "character"
vectors = {word: i for i, word in enumerate(about["vectors"] or [], start=1)}

# Each feature has an id for unknown values, and then an id for each known value.
ids, first = {}, 0
for name, values in about["features"]["values"].items():
    ids[name] = {value: first + i for i, value in enumerate([None, *values])}
    first += 1 + len(values)
# A character has several bigrams, trigrams and classes.
counts = {"bigram": 2, "trigram": 3, "class": 3}
tables = [table for name, table in ids.items() for _ in range(counts.get(name, 1))]

for line in sys.stdin:
    places = [i for i, letter in enumerate(line) if not letter.isspace()]
    tokens = [line[i] for i in places] if is_text else line.split()
    if not tokens:
        continue
    text = f"\n\n{''.join(tokens)}\n\n"  # line ends stand for what lies before and after
    found = character_features(text) if is_text else map(word_features, tokens)
    rows = [
        [table.get(x, table[None]) for table, x in zip(tables, values, strict=True)]
        for values in found
    ]
    if about["vectors"] is not None:
        for row, token in zip(rows, tokens, strict=True):
            row.append(vectors.get(token, vectors.get(token.lower(), 0)))
    feed = {"features": np.array([rows], np.int32), "lengths": np.array([len(rows)], np.int32)}
    if is_text:  # whether white space precedes a character
        feed["breaks"] = np.diff(places, prepend=places[0])[None] > 1
    tags = session.run(["tags"], feed)[0][0]
    print(*(f"{token}/{about['labels'][tag]}" for token, tag in zip(tokens, tags, strict=True)))
