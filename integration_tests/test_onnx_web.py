"""An exported tagger gives the same tags in onnxruntime-web (WebAssembly, under node)."""

from __future__ import annotations

import json
import shutil
import subprocess
import unicodedata
from importlib import resources
from pathlib import Path

import pytest

from bcrf.tagger import Tagger
from bcrf.tagger.export import export_onnx
from bcrf.tagger.training import Config, train

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = "onnxruntime-web@1.30.0"
FOLDER = ROOT / "build" / "onnxruntime-web"
WEB_MODULE = Path(str(resources.files("bcrf") / "web" / "tagger.mjs"))
SAMPLES = Path(str(resources.files("bcrf") / "samples"))

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed",
)

NETWORK = {"feature_width": 16, "context_width": 32, "score_width": 16}

CASES = {
    "ner": ("english-ner-train.conll", "bregman-5-relaxed"),
    "segmentation": ("chinese-train.conllu", "bregman-5-relaxed"),
    "pos": ("english-train.conllu", "viterbi"),
}

# Letters that have become letters with case, or ceased to be, since Unicode 14.
RECLASSIFIED = set("\u0295\u10fc\ua7f2\ua7f3\ua7f4\uab69")

SENTENCES = {
    "ner": [
        "Ada Lovelace visited New York again .",
        "B-52 İSTANBUL Σίσυφος ΣΑΣ ²x① 東京 ǅ \U0001d400b",
        "no",
        "",
        "two\u00a0spaces\tand  more",
    ],
    "segmentation": ["我们看见了 Linux 图书馆。", " 他 有3本书 ", "書", "", "\U00020000é①"],
    "pos": ["We saw the old dog , and ran 3.14 miles !", "run"],
}


@pytest.fixture(scope="module")
def runtime() -> Path:
    """Install the runtime below `build`; return the program that runs a tagger in it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true}\n')
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", RUNTIME]
    found = subprocess.run(install, cwd=FOLDER, capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"npm cannot install {RUNTIME}: {found.stderr.strip()[-300:]}")
    program = Path(__file__).with_name("run_tagger.mjs")
    return Path(shutil.copy(program, FOLDER))  # node looks for packages beside the program


def tags_of_web(runtime: Path, file: Path, sentences: list[str]) -> list[list[list[str]]]:
    found = subprocess.run(
        ["node", runtime, WEB_MODULE, file],
        input="".join(f"{x}\n" for x in sentences),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.parametrize("task", CASES)
def test_tags_are_those_of_the_tagger(task: str, runtime: Path, tmp_path: Path) -> None:
    corpus, decoder = CASES[task]
    settings = {
        "output": str(tmp_path / "run"),
        "data": {"task": task, "train": str(SAMPLES / corpus), "min_count": 2},
        "model": {
            "features": "character" if task == "segmentation" else "word",
            "transitions": "shared",
            **NETWORK,
        },
        "training": {"epochs": 4, "batch": 16, "device": "cpu"},
        "optimizer": {"learning_rate": 5e-3},
    }
    for _ in train(Config.from_dict(settings)):
        pass
    tagger = Tagger.load(settings["output"], "cpu")
    exported = export_onnx(tagger, tmp_path / "tagger.onnx", decoder=decoder, quantize=False)
    sentences = SENTENCES[task] + [
        text if task == "segmentation" else " ".join(text)
        for text in _corpus_sentences(task, corpus)
    ]
    expected = [
        [] if not text.strip() else [list(pair) for pair in _tagged(tagger, text, decoder)]
        for text in sentences
    ]
    assert tags_of_web(runtime, exported.path, sentences) == expected


def _corpus_sentences(task: str, corpus: str) -> list:
    from bcrf.tagger.data import read, surface

    sentences = list(read(SAMPLES / corpus))[:40]
    return [surface(x).text if task == "segmentation" else x.words for x in sentences]


def _tagged(tagger: Tagger, text: str, decoder: str) -> list[tuple[str, str]]:
    given = text if tagger.task.is_on_text else text.split()
    (tagged,) = tagger.tag([given], decoder=decoder, repair="none")
    return list(zip(tagged.example.tokens, tagged.labels, strict=True))


def test_kinds_of_all_letters_are_those_of_python(runtime: Path) -> None:
    """Python and node may have different versions of Unicode, in which a few letters differ."""
    from bcrf.tagger.data.features import word_shape

    program = (
        f"import {{ letterKind }} from {json.dumps(WEB_MODULE.as_uri())};"
        "const kinds = []; for (let c = 0; c < 0x110000; c++) kinds.push("
        "c >= 0xd800 && c < 0xe000 ? '' : letterKind(String.fromCodePoint(c)));"
        "console.log(JSON.stringify(kinds));"
    )
    command = ["node", "--input-type=module", "-e", program]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    kinds = json.loads(output)
    different = [
        chr(code)
        for code, kind in enumerate(kinds)
        if kind != "" and unicodedata.category(chr(code)) != "Cn" and word_shape(chr(code)) != kind
    ]
    assert set(different) <= RECLASSIFIED


def test_other_files_are_refused(runtime: Path, tmp_path: Path) -> None:
    for content, message in ((b"", "no description"), (b"\xff" * 30, "not an ONNX file")):
        file = tmp_path / "x.onnx"
        file.write_bytes(content)
        command = ["node", runtime, WEB_MODULE, file]
        found = subprocess.run(command, input="", capture_output=True, text=True)
        assert found.returncode != 0
        assert message in found.stderr
