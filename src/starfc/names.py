"""Names: what a person may be called, on the page and on the disk.

In: what somebody typed. Out: the name as it is kept, in any script of the world, joined letters and emoji included,
and the folder name it becomes. Refused is what a reader could not see or would see wrongly: control characters, line
breaks, and marks that turn the direction of the text around them.
"""

from __future__ import annotations

import unicodedata

from .errors import InputError

LONGEST_NAME = 200
_MOST_BYTES = 180  # of a folder name, which may have 255; a number is added to some
_JOINERS = "\u200c\u200d"  # within words of Persian or Hindi, and between the parts of an emoji
_UNSEEN = "\u200b\u2060"  # spaces of no width: two names would look like one
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"  # embeddings, overrides, isolates; byte order
_PLAIN = " _.()'-"  # of ASCII, beside letters and digits
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


def clean_name(name: str) -> str:
    r"""Return a name as it is kept, "" for none; an error where it holds what cannot be shown.

    >>> clean_name("  山田\u3000太郎 "), clean_name("Jose\u0301")
    ('山田\u3000太郎', 'José')
    """
    for character in name:
        if _is_refused(character):
            raise InputError(
                f"a name may hold no U+{ord(character):04X} (line breaks, control characters and marks that turn the"
                " direction of a text cannot be seen); remove it"
            )
    clean = unicodedata.normalize("NFC", name.strip())
    if len(clean) > LONGEST_NAME:
        raise InputError(f"a name may have {LONGEST_NAME} characters, not {len(clean)}; shorten it")
    if clean and all(unicodedata.category(character)[0] in "CZ" for character in clean):
        raise InputError("a name needs a character that can be seen; add one, or leave it empty for none")
    return clean


def make_file_name(name: str, label: int) -> str:
    """Return a folder name that is safe everywhere, and still tells people apart whose names look alike on disk.

    Letters of all scripts with their marks stay, and so do emoji; what has a meaning in a path becomes a space.

    >>> [make_file_name(name, 4) for name in ("Ann Lee", "../../etc", "a/b", "हिन्दी")]
    ['Ann Lee', 'etc 4', 'a b 4', 'हिन्दी']
    """
    given = unicodedata.normalize("NFC", name)
    plain = "".join(character if _is_safe(character) else " " for character in given).replace("..", " ")
    plain = _shorten(" ".join(plain.split())).strip(" ._" + _JOINERS)
    if plain and plain == given and plain.split(".")[0].strip().lower() not in _DEVICES:
        return plain
    return f"{plain} {label}".strip()


def _is_refused(character: str) -> bool:
    """Tell whether a character has no place in a name."""
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _UNSEEN + _TURNS:
        return True
    return ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF  # never characters


def _is_safe(character: str) -> bool:
    """Tell whether a character may stand in a folder name; such as only look like a slash or a dot may not."""
    if character.isascii():
        return character.isalnum() or character in _PLAIN
    if _is_refused(character) or unicodedata.category(character)[0] == "Z":
        return False
    looks = unicodedata.normalize("NFKC", character)
    return all(not part.isascii() or part.isalnum() or part in " _()'-" for part in looks)


def _shorten(name: str) -> str:
    """Cut a name to what a folder name may have, between characters."""
    return name.encode()[:_MOST_BYTES].decode(errors="ignore")
