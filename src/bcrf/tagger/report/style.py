"""The style sheet of a report: light and dark, wide and narrow, without any file or font."""

__all__ = ["STYLE"]

# Shares of the colour in the background of a cell, in percent. Text has a contrast of at least 4.5
# on all of them, in the light and the dark scheme; between 50 and 95 it would have less.
_SHARES = (7, 14, 21, 28, 35, 42, 50, 95, 98, 100)

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2430; --soft: #586374; --line: #d5dbe3;
  --box: #f5f7fa; --link: #0b5cad; --right: #1a7f4b; --wrong: #b5400f; --mark: #ffe9a8;
  --accent: #2f6db5; --on-strong: #fff; }
@media (prefers-color-scheme: dark) { :root { --page: #14181e; --text: #e4e8ee; --soft: #a3aebd;
  --line: #36404d; --box: #1d232b; --link: #7db8f5; --right: #57c08a; --wrong: #f29468;
  --mark: #5c4a12; --accent: #7db8f5; --on-strong: #14181e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main, header, footer { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1.5rem 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .5rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--link); }
a:focus-visible, .scroll:focus-visible, summary:focus-visible {
  outline: 3px solid var(--accent); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--page); padding: .25rem .5rem; }
.soft { color: var(--soft); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0;
  margin: 1rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; margin: .75rem 0; padding: 0; }
.facts div { display: flex; gap: .4rem; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  padding: 0; margin: 1rem 0; list-style: none; }
.cards li { background: var(--box); border: 1px solid var(--line); border-radius: .5rem;
  padding: .75rem 1rem; }
.cards strong { display: block; font-size: 1.6rem; line-height: 1.3; font-weight: 650; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .75rem 0; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid var(--line);
  font-weight: 400; vertical-align: top; }
thead th { font-weight: 600; border-bottom-width: 2px; white-space: nowrap; }
tbody th { font-weight: 600; }
.n { text-align: right; white-space: nowrap; }
.heat th, .heat td { padding: .2rem .35rem; border: 1px solid var(--line); text-align: center;
  font-size: .8rem; min-width: 2.2rem; }
.heat thead th { vertical-align: bottom; }
.heat thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
.heat tbody th { position: sticky; left: 0; background: var(--page); text-align: left; z-index: 1; }
.heat .corner { position: sticky; left: 0; background: var(--page); z-index: 1; white-space: normal;
  font-weight: 400; color: var(--soft); }
HEAT_LEVELS
svg { max-width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 13px; }
.axis { stroke: var(--line); } .grid { stroke: var(--line); stroke-dasharray: 2 4; }
.ideal { stroke: var(--soft); stroke-dasharray: 6 4; }
.curve { stroke: var(--accent); fill: none; stroke-width: 2.5; }
.dot { fill: var(--accent); } .bar { fill: var(--accent); opacity: .55; }
.errors { margin: 0; padding: 0; list-style: none; counter-reset: error; }
.errors > li { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .9rem;
  margin: .6rem 0; counter-increment: error; }
details .errors { counter-reset: error 10; }
summary { cursor: pointer; color: var(--link); padding: .25rem 0; }
.errors table { margin: .25rem 0; font-size: .95rem; }
.place { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.place::before { content: counter(error) ". "; }
.context { margin: .25rem 0; max-width: none; overflow-wrap: anywhere; }
.context mark { background: var(--mark); color: inherit; font-weight: 650; padding: 0 .15rem;
  border-radius: .2rem; }
.sides { display: grid; grid-template-columns: max-content 1fr; gap: 0 .75rem; margin: .25rem 0; }
.sides dt { color: var(--soft); }
.sides dd { margin: 0; overflow-wrap: anywhere; }
.tag { font-weight: 650; }
.right .tag { color: var(--right); } .wrong .tag { color: var(--wrong); }
footer { margin-top: 3rem; padding-bottom: 2rem; color: var(--soft); font-size: .9rem; }
@media (max-width: 34rem) { .facts { flex-direction: column; } h1 { font-size: 1.35rem; }
  table { font-size: .875rem; } th, td { padding: .25rem .3rem; } }
@media print { nav, .skip { display: none; } .errors > li { break-inside: avoid; } }
""".replace(
    "HEAT_LEVELS",
    "\n".join(
        f".{kind}{level} {{ background: color-mix(in srgb, var(--{color}) {share}%, var(--page));"
        f"{' color: var(--on-strong);' if share > 50 else ''} }}"
        for kind, color in (("g", "right"), ("r", "wrong"))
        for level, share in enumerate(_SHARES, start=1)
    ),
)
"""Cells of the confusion matrix have the classes g1 to g10 (right) and r1 to r10 (wrong)."""
