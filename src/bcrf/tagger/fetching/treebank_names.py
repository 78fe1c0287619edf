"""The names of treebanks of Universal Dependencies, and their official repositories."""

from __future__ import annotations

from ...suggestions import did_you_mean

__all__ = ["DEFAULT_RELEASE", "TREEBANKS", "unknown_treebank"]

DEFAULT_RELEASE = "2.15"
"""The release that the paper uses."""

# Each line: the language code, the language as it is spelt in the names of repositories, and its
# treebanks that have a single training file.
_LANGUAGES = """
af Afrikaans AfriBooms
ar Arabic PADT
be Belarusian HSE
bg Bulgarian BTB
ca Catalan AnCora
cop Coptic Scriptorium
cs Czech CAC CLTT FicTree
cu Old_Church_Slavonic PROIEL
cy Welsh CCG
da Danish DDT
de German GSD
el Greek GDT GUD
en English Atis ESLSpok EWT GUM LinES ParTUT
es Spanish AnCora GSD
et Estonian EDT EWT
eu Basque BDT
fa Persian PerDT Seraji
fi Finnish FTB TDT
fo Faroese FarPaHC
fr French GSD ParisStories ParTUT Rhapsodie Sequoia
fro Old_French PROFITEROLE
ga Irish IDT
gd Scottish_Gaelic ARCOSG
gl Galician CTG TreeGal
got Gothic PROIEL
grc Ancient_Greek Perseus PROIEL
he Hebrew HTB IAHLTwiki
hi Hindi HDTB
hr Croatian SET
hu Hungarian Szeged
hy Armenian ArmTDP BSUT
id Indonesian CSUI GSD
is Icelandic IcePaHC Modern
it Italian ISDT ParTUT PoSTWITA TWITTIRO VIT
ja Japanese GSD GSDLUW
ko Korean GSD Kaist KSL
la Latin ITTB LLCT Perseus PROIEL UDante
lt Lithuanian ALKSNIS HSE
lv Latvian LVTB
lzh Classical_Chinese Kyoto
mr Marathi UFAL
mt Maltese MUDT
nl Dutch Alpino LassySmall
no Norwegian Bokmaal Nynorsk
orv Old_East_Slavic TOROT
pl Polish LFG PDB
pt Portuguese Bosque CINTIL GSD PetroGold Porttinari
ro Romanian Nonstandard RRT SiMoNERo
ru Russian GSD Taiga
sk Slovak SNK
sl Slovenian SSJ SST
sme North_Sami Giella
sr Serbian SET
sv Swedish LinES Talbanken
ta Tamil TTB
te Telugu MTG
tr Turkish BOUN IMST Kenet
ug Uyghur UDT
uk Ukrainian IU
ur Urdu UDTB
vi Vietnamese VTB
wo Wolof WTB
zh Chinese GSD GSDSimp
"""


def _repositories(languages: str) -> dict[str, str]:
    return {
        f"{code}_{treebank.lower()}": f"UD_{language}-{treebank}"
        for code, language, *treebanks in map(str.split, languages.strip().splitlines())
        for treebank in treebanks
    }


TREEBANKS = _repositories(_LANGUAGES)
"""The repository of each treebank: {"en_ewt": "UD_English-EWT", ...}."""


def unknown_treebank(name: str) -> str:
    """Return the error message for a name that is not in `TREEBANKS`."""
    hint = did_you_mean(name, TREEBANKS, count=3) or "; `bcrf data --list` lists the known names."
    return (
        f"unknown treebank {name!r}{hint} To fetch a treebank that is not in this list, give the "
        "address or folder of its files (--from)"
    )
