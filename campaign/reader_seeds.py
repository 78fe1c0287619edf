"""Provide small valid files for every reader. The campaign mutates them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["SEEDS", "URL"]

_ROOT = Path(__file__).parent.parent
_SAMPLES = _ROOT / "src" / "bcrf" / "samples"

URL = "http://host/x"

_CONLL2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
_UNER = """# newdoc id = x
# text = 我們
1\t我\tO\t-\t-
2\t們\tB-PER\tA\t-

# text = du pain
1-2\tdu\t_\t_\t_
1\tde\tO\t-\t-
1.1\te\t_\t_\t_
2\tle\tO\t-\t-
3\tpain\tB-LOC\t-\t-
"""
_MULTIWORD = """# sent_id = 1
# text = Du pain, là.
1-2\tDu\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tDe\tde\tADP\tP\tX=Y\t3\tcase\t_\t_
2\tle\tle\tDET\tD\t_\t3\tdet\t_\t_
3\tpain\tpain\tNOUN\tN\t_\t0\troot\t_\tSpaceAfter=No|NER=B-FOOD
4\t,\t,\tPUNCT\t,\t_\t3\tpunct\t_\t_
4.1\tx\tx\tX\t_\t_\t_\t_\t3:dep\t_
5\tlà\tlà\tADV\tA\t_\t3\tadvmod\t_\tSpaceAfter=No|SpacesAfter=\\s\\n
6\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

"""
_JSONL = """{"id": 7, "words": ["a b", "c"], "tags": ["X", ["Y", "Z"]]}

{"words": [], "tags": []}
{"words": ["d"], "tags": [null], "x": {"y": [1, 2.5, "é"]}}\r
{"text": "un  mot"}
{"text": "deux\\r\\nlignes\\n"}
{"text": "du pain", "words": ["de", "le", "pain"], "tags": ["A", "B", "C"], "starts": [0, 0, 3]}
"""
_SETTINGS: dict[str, Any] = {
    "output": "runs/x",
    "data": {"train": "train.conllu", "dev": None, "task": "ner", "strict": True, "min_count": 1},
    "model": {"objective": "bregman", "layers": 2, "dropout": 0.3},
    "optimizer": {"learning_rate": 3e-4, "schedule": "linear", "lazy": False},
    "training": {"epochs": 12, "batch": 32, "patience": None},
    "decoding": {"decoder": "bregman-10", "repair": "mbr"},
}
_TOML = "\n".join(
    [
        'output = "runs/x"',
        *(
            line
            for part, values in _SETTINGS.items()
            if isinstance(values, dict)
            for line in (
                f"[{part}]",
                *(f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None),
            )
        ),
    ]
)
_YAML = "\n".join(
    [
        "output: runs/x  # comment",
        *(
            line
            for part, values in _SETTINGS.items()
            if isinstance(values, dict)
            for line in (f"{part}:", *(f"  {k}: {json.dumps(v)}" for k, v in values.items()))
        ),
    ]
)
_SUMS = f"{'0a' * 32}  xx_toy-ud-train.conllu\n{'F' * 64} *./xx_toy-ud-dev.conllu\r\n\n"


def _pieces(name: str) -> list[bytes]:
    """Return short pieces of a sample corpus, cut at empty lines."""
    blocks = (_SAMPLES / name).read_bytes().split(b"\n\n")
    return [b"\n\n".join(blocks[at : at + 3]) + b"\n\n" for at in range(0, 30, 10)]


_TREES = [
    _MULTIWORD.encode(),
    b"\xef\xbb\xbf" + _MULTIWORD.replace("\n", "\r\n").encode(),
    *_pieces("english-dev.conllu"),
    *_pieces("chinese-dev.conllu"),
]
_COLUMNS = [
    "#bcrf\tO\nnew york\tB-LOC\n\t\na\xa0b\tO\n \t\n\n".encode(),
    b"Ann  B-PER \nsees O\n\nBob B-PER\n",
    b"an\napple\n\n-DOCSTART-\n\nx\n",
    b"a B-PER|O\nb ?\n\n",
    *_pieces("english-ner-dev.conll"),
]
_TEXTS = ["\ufeffA  b.\n\n c\u3000d \r\nx\u2028y".encode(), b"Ada visited Turin again .\n" * 3]
SEEDS: dict[str, list[bytes]] = {
    "conllu": _TREES,
    "columns": [*_COLUMNS, _CONLL2003.encode()],
    "conll2003": [_CONLL2003.encode(), b"\xef\xbb\xbf" + _CONLL2003.replace(" ", "\t").encode()],
    "uner": [_UNER.encode(), _UNER.replace("\n", "\r\n").encode()],
    "jsonl": [_JSONL.encode(), b"\xef\xbb\xbf" + _JSONL.encode()],
    "text": _TEXTS,
    "auto": [*_TREES[:3], *_COLUMNS, _CONLL2003.encode(), _UNER.encode(), _JSONL.encode(), *_TEXTS],
    "toml": [_TOML.encode(), (_ROOT / "configs" / "ner.toml").read_bytes()],
    "yaml": [_YAML.encode(), json.dumps(_SETTINGS).encode()],
    "json": [json.dumps(_SETTINGS).encode(), json.dumps(_SETTINGS, indent=1).encode()],
    "checksums": [_SUMS.encode(), _SUMS.encode() * 5],
    "download note": [
        json.dumps({"url": URL, "validator": validator}).encode()
        for validator in ('"abc"', "Wed, 21 Oct 2015 07:28:00 GMT", None)
    ],
    "treebank note": [b"http://host/x\n", "/data/tr\u00e9sor\n".encode()],
}
"""Name of a reader -> valid files."""
