"""Render a report as one HTML page, which needs no network and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from .charts import calibration_curve, confusion_matrix
from .markup import corpus_text, escape, number, percent, scrollable, table
from .style import STYLE

__all__ = ["render_page", "score_title"]

Values = Mapping[str, Any]

_SHOWN = 10
"""Entries of a list that are shown at once."""

_SCORES = {
    "accuracy": "Accuracy",
    "unknown_accuracy": "Accuracy of unknown words",
    "f1": "F1",
    "precision": "Precision",
    "recall": "Recall",
    "f1/places": "F1 without tags",
    "perfect": "Sentences without error",
}

_ITEMS = {"ner": "mentions"}
"""What the items of a task are called; of the other tasks: words."""


def score_title(name: str) -> str:
    """Return the title of a score.

    Example:
        >>> score_title("unknown_accuracy")
        'Accuracy of unknown words'
    """
    return _SCORES.get(name, name)


def render_page(report: Values) -> str:
    """Return the HTML page of a report.

    Args:
        report: the values that `build_report` returned.

    Example (`tagger` and `file` as in `Tagger`):
        >>> from bcrf.tagger.data import read
        >>> from bcrf.tagger.report import TaggingSystem, build_report, render_page
        >>> examples = tagger.task.annotated(list(read(file)))
        >>> render_page(build_report(TaggingSystem("small", tagger, examples))).splitlines()[0]
        '<!doctype html>'
    """
    sections = [section for section in _sections(report) if section is not None]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>{content}</section>\n'
        for name, title, content in sections
    )
    title = f"{report['system']['name']} on {report['file']}"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<a class="skip" href="#scores">Skip to the scores</a>
<header>
<h1>{corpus_text(report["system"]["name"])}</h1>
{_facts(report)}
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}</main>
<footer>The same numbers are in report.json. Percentages are rounded to two decimals.</footer>
</body>
</html>
"""


_Section = tuple[str, str, str]
"""The anchor, the title and the content of a section."""


def _sections(report: Values) -> Iterator[_Section | None]:
    yield "scores", "Scores", _scores(report)
    if "comparison" in report:
        yield "comparison", "Comparison", _comparison(report)
    yield "tags", "Tags", _tags(report)
    yield "confusion", "Confusion matrix", _confusion(report)
    yield "errors", "Errors with the highest confidence", _errors(report)
    yield "unknown", "Unknown words", _unknown(report)
    yield "calibration", "Calibration", _calibration(report)
    yield "certificates", "Certified sentences", _certified(report)


def _items(report: Values) -> str:
    return _ITEMS.get(report["task"], "words")


def _facts(report: Values) -> str:
    system = report["system"]
    facts = [
        ("file", corpus_text(report["file"])),
        ("task", escape(report["task"])),
        ("decoder", escape(system["decoder"])),
        ("repair", escape(system["repair"])),
        ("trained as", escape(system["objective"])),
        ("weights", number(system["parameters"])),
        ("sentences", number(report["sentences"])),
        ("characters" if report["task"] == "segmentation" else "words", number(report["tokens"])),
    ]
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


def _scores(report: Values) -> str:
    method = report["resampling"]
    cards = "".join(
        f"<li>{score_title(score['name'])}<strong>{percent(score['value'])}</strong>"
        f'<span class="soft">{percent(score["low"])} to {percent(score["high"])}</span></li>'
        for score in report["scores"]
    )
    repaired = report["system"]["repaired"]
    return (
        f'<ul class="cards">{cards}</ul>'
        f'<p class="soft">Below each score: its {100 * method["level"]:.0f}\u202f% interval '
        f"(percentile bootstrap over sentences, {number(method['resamples'])} resamples, seed "
        f"{method['seed']}). {number(repaired)} of {number(report['sentences'])} sentences had "
        f"ill-formed tags{' that were repaired' if repaired else ''}.</p>"
    )


def _tags(report: Values) -> str:
    rows = [
        [
            corpus_text(row["tag"]),
            percent(row["precision"]),
            percent(row["recall"]),
            percent(row["f1"]),
            number(row["gold"]),
            number(row["predicted"]),
        ]
        for row in report["tags"]
    ]
    caption = f"Precision, recall and F1 of each tag, and the number of {_items(report)}"
    columns = ["tag", "precision", "recall", "F1", "gold", "predicted"]
    return scrollable(table(caption, columns, rows), caption)


def _confusion(report: Values) -> str:
    matrix = report["confusion"]
    if not matrix["tags"]:
        return f"<p>There are no {_items(report)}.</p>"
    note = (
        '<p class="soft">Rows: gold tags. Columns: predicted tags. The stronger the colour, the '
        "larger the share of the row; green cells are right.</p>"
    )
    if matrix["has_none"]:
        note += (
            f"<p>(none): only one side has a {_items(report)[:-1]} at this place. The row (none) "
            "has those that are only predicted, the column (none) those that are only gold.</p>"
        )
    return note + scrollable(confusion_matrix(matrix), "Confusion matrix")


def _errors(report: Values) -> str:
    errors = report["errors"]
    if not errors["count"]:
        return "<p>There are no errors.</p>"
    shown = [
        f"<li>{_context(error)}"
        f'<dl class="sides">{_side("gold", error["gold"], "right")}'
        f"{_side('predicted', error['predicted'], 'wrong')}"
        f"<dt>confidence</dt><dd>{percent(error['confidence'])}</dd></dl></li>"
        for error in errors["shown"]
    ]
    return (
        f"<p>{number(len(errors['shown']))} of {number(errors['count'])} errors. A confident error "
        "is often a mistake in the annotation, or a case that the training data lack. If nothing "
        "was predicted, the confidence is the lowest probability of the labels of the words.</p>"
        + _folded(shown)
    )


def _context(place: Values) -> str:
    return (
        f'<div class="place">{escape(PurePath(place["path"]).name)}:{place["line"]}</div>'
        f'<p class="context" dir="auto">{escape(place["before"])}<mark>{escape(place["text"])}'
        f"</mark>{escape(place['after'])}</p>"
    )


def _side(name: str, items: Sequence[Values], kind: str) -> str:
    """Return one row of the items of one side: gold, predicted, or a system."""
    return f'<dt>{name}</dt><dd class="{kind}">{_listed(items)}</dd>'


def _listed(items: Sequence[Values]) -> str:
    listed = ", ".join(
        f'{corpus_text(item["text"])} <span class="tag">{escape(item["tag"])}</span>'
        for item in items
    )
    return listed or "nothing"


def _folded(entries: Sequence[str]) -> str:
    """Return a numbered list; entries after the first ones are shown on demand."""
    shown, rest = entries[:_SHOWN], entries[_SHOWN:]
    found = f'<ol class="errors">{"".join(shown)}</ol>'
    if rest:
        found += (
            f"<details><summary>{len(rest)} more</summary>"
            f'<ol class="errors" start="{_SHOWN + 1}">{"".join(rest)}</ol></details>'
        )
    return found


def _unknown(report: Values) -> str:
    unknown, items = report["unknown_words"], _items(report)
    if unknown is None:
        return (
            "<p>The model has no list of its training words: it reads characters, or its encoder "
            "is pretrained.</p>"
        )
    if not unknown["words"]:
        return "<p>The training data have all words of the file.</p>"
    kind = "Mentions with an unknown word" if items == "mentions" else "Unknown words"
    known = "Other mentions" if items == "mentions" else "Known words"
    rows = [
        [kind, number(unknown["items"]), percent(unknown["recall"])],
        [known, number(unknown["known_items"]), percent(unknown["known_recall"])],
    ]
    summary = (
        f"<p>{number(unknown['words'])} words ({percent(unknown['share'])}) are not in the "
        "training data.</p>"
    )
    summary += table("How many are right", ["", "count", "right"], rows)
    if not unknown["wrong"]:
        return summary
    wrong = [
        [
            corpus_text(row["text"]),
            corpus_text(row["gold"]),
            corpus_text(row["predicted"]),
            number(row["count"]),
        ]
        for row in unknown["wrong"]
    ]
    caption = "The most frequent errors"
    columns = ["text", "gold", "predicted", "count"]
    return summary + scrollable(table(caption, columns, wrong, text_columns=3), caption)


def _calibration(report: Values) -> str:
    found, items = report["calibration"], _items(report)
    if not found["items"]:
        return f"<p>There are no predicted {items}.</p>"
    rows = [_calibration_row("as reported", found)]
    note = "The probabilities are those of the raw scores."
    if found["before"] is not None:
        rows.append(_calibration_row("without temperature", found["before"]))
        note = (
            f"The scores are divided by the temperature {found['temperature']:.4g}, which was "
            "fitted on dev; the tags do not depend on it."
        )
    columns = ["probabilities", "ECE", "Brier score", "mean confidence"]
    right = (
        f"{percent(found['accuracy'])} of the {number(found['items'])} predicted {items} are right"
    )
    return (
        f"<p>A calibrated model is right in 80\u202f% of the cases in which its confidence is 0.8: "
        "its curve lies on the dashed line. ECE is the mean distance from this line. The Brier "
        "score is the mean squared difference between confidence and 1 (right) or 0 (wrong). Less "
        f"is better for both. {note}</p>"
        + scrollable(table(right, columns, rows), "Calibration")
        + f"<div>{calibration_curve(found['bins'])}</div>"
    )


def _calibration_row(name: str, values: Values) -> list[str]:
    return [
        name,
        f"{100 * values['ece']:.2f}\u202f%",
        f"{values['brier']:.4f}",
        percent(values["confidence"]),
    ]


def _certified(report: Values) -> str:
    found = report["certified"]
    return (
        f"<p><strong>{percent(found['share'])}</strong>: of {number(found['sentences'])} "
        f"sentences, the decoder {escape(found['decoder'])} proves {number(found['certified'])} "
        "optimal by parallel projections, without Viterbi.</p>"
    )


# Comparison


def _comparison(report: Values) -> str:
    comparison, method = report["comparison"], report["resampling"]
    first, second = report["system"], comparison["system"]
    rows = [
        [
            score_title(row["name"]),
            percent(row["first"]),
            percent(row["second"]),
            _signed(row["difference"]),
            f"{_signed(row['low'])} to {_signed(row['high'])}",
            f"{row['p']:.4f}",
        ]
        for row in comparison["scores"]
    ]
    names = [_system(one) for one in (first, second)]
    interval = f"{100 * method['level']:.0f}\u202f% interval"
    columns = ["score", "first", "second", "difference", interval, "p"]
    counts = comparison["sentences"]
    return (
        f'<dl class="sides"><dt>first</dt><dd>{names[0]}</dd><dt>second</dt><dd>{names[1]}</dd>'
        "</dl>"
        + scrollable(table("Both systems on the same sentences", columns, rows), "Comparison")
        + f"<p>p: approximate randomisation, two-sided, {number(method['rounds'])} rounds: how "
        "often a difference at least as large appears if the results of the two systems are "
        "exchanged on random sentences. The interval is that of the paired bootstrap over "
        "sentences. Many tests on one page find small p-values by chance: trust the first row.</p>"
        f"<h3>Sentences that differ</h3><p>{_counted(counts)}</p>"
        + _folded([_difference(sentence) for sentence in counts["shown"]])
    )


def _system(values: Values) -> str:
    return f"{corpus_text(values['name'])}, decoder {escape(values['decoder'])}"


def _counted(counts: Values) -> str:
    return (
        f"The same predictions in {number(counts['same'])} sentences. The first system has fewer "
        f"errors in {number(counts['first_better'])}, the second one in "
        f"{number(counts['second_better'])}; different but equally many errors in "
        f"{number(counts['equally_good'])}. {number(len(counts['shown']))} of them follow, the "
        "largest differences first."
    )


def _difference(sentence: Values) -> str:
    rows = "".join(
        f"<tr><td>{_listed(region['gold'])}</td>"
        f'<td class="{_kind(region["first_right"])}">{_listed(region["first"])}</td>'
        f'<td class="{_kind(region["second_right"])}">{_listed(region["second"])}</td></tr>'
        for region in sentence["regions"]
    )
    hidden = sentence["differences"] - len(sentence["regions"])
    more = f'<p class="soft">and {number(hidden)} more</p>' if hidden else ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("gold", "first", "second"))
    return (
        f"<li>{_context(sentence)}"
        + scrollable(
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>", "Differences"
        )
        + f"{more}</li>"
    )


def _kind(is_right: bool) -> str:
    return "right" if is_right else "wrong"


def _signed(difference: float) -> str:
    return f"{100 * difference:+.2f}".replace("-", "\u2212")
