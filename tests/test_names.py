import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starfc.errors import InputError
from starfc.names import LONGEST_NAME, clean_name, make_file_name

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
ALIREZA = "\u0639\u0644\u06cc\u200c\u0631\u0636\u0627"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


@pytest.mark.parametrize(
    "name",
    [
        "山田\u3000太郎",
        ALIREZA,
        FAMILY,
        ENGLAND,
        "हिन्दी",
        "O\u2019Neil",
        "שרה",
        "Ann\u00a0Lee",
    ],
)
def test_names_of_all_the_world_are_kept(name):
    assert clean_name(f" {name} ") == name


@pytest.mark.parametrize(
    "character", ["\n", "\0", "\x1b", "\u200b", "\u202e", "\u2066", "\u2028", "\ud800", "\ufeff", "\uffff", "\x85"]
)
def test_what_cannot_be_seen_is_refused(character):
    with pytest.raises(InputError, match=f"U\\+{ord(character):04X}"):
        clean_name(f"Ann{character}Lee")
    assert character not in make_file_name(f"Ann{character}Lee", 3)


def test_a_name_is_seen_and_short():
    assert clean_name("Jose\u0301") == "José"
    assert clean_name("\u3000 ") == ""
    with pytest.raises(InputError, match="can be seen"):
        clean_name("\u200d")
    with pytest.raises(InputError, match="200 characters, not 201"):
        clean_name("x" * (LONGEST_NAME + 1))


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("हिन्दी", "हिन्दी"), ("தமிழ்", "தமிழ்"), (ALIREZA, ALIREZA), (f"Ann {FAMILY}", f"Ann {FAMILY}"),
        ("山田\u3000太郎", "山田 太郎 7"), ("Ann", "Ann"), ("a/b", "a b 7"), ("..", "7"), ("con", "con 7"),
        ("NUL.txt", "NUL.txt 7"), ("a\uff0fb", "a b 7"), ("\uff0e\uff0e", "7"), ("a\\b:c*", "a b c 7"), ("\u200d", "7"),
    ],
)  # fmt: skip
def test_folder_names(name, folder):
    assert make_file_name(name, 7) == folder


@given(st.text(max_size=300))
def test_folder_names_are_safe(name):
    made = make_file_name(name, 12)
    assert made and made == made.strip(" .") and ".." not in made and made not in (".", "_alone")
    assert not set(made) & set('/\\:*?"<>|\u202e\u2066') and len(made.encode()) < 200
    assert all(unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp") for character in made)
