import os
import struct
import zlib

import numpy as np
import pytest

from starfc.errors import InputError
from starfc.images import load_images, make_thumbnail

image_module = pytest.importorskip("PIL.Image")


def save_picture(path, size=(40, 30), colour=(200, 10, 10)):
    image_module.new("RGB", size, colour).save(path)


def make_png_header(width, height):
    """Return a PNG that promises width x height pixels and holds none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    body = zlib.compress(b"\0" * 100)
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
        + struct.pack(">I", len(body)) + b"IDAT" + body + struct.pack(">I", zlib.crc32(b"IDAT" + body))
    )  # fmt: skip


def test_a_folder_in_the_order_of_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.png", "a.PNG", "sub/c.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    images = load_images(tmp_path, n_faces=3)
    assert [images.name(row) for row in range(3)] == ["a.PNG", "b.png", "sub/c.jpg"]
    assert images.find(1) == (tmp_path / "b.png").resolve()
    assert [images.name(-1), images.name(3), images.find(-1), images.find(99)] == ["", "", None, None]


def test_lists(tmp_path):
    save_picture(tmp_path / "one.png")
    (tmp_path / "list.txt").write_text("one.png\n\none.png\n\n")
    images = load_images(tmp_path / "list.txt", n_faces=3)
    assert [images.find(row) is not None for row in range(3)] == [True, False, True]
    (tmp_path / "table.csv").write_text("File,row_in_features\none.png,2\n")
    images = load_images(tmp_path / "table.csv", n_faces=4)
    assert [images.name(row) for row in range(4)] == ["", "", "one.png", ""]
    (tmp_path / "other.csv").write_text("path,row\none.png,700\none.png,701\n")
    assert load_images(tmp_path / "other.csv", n_faces=2).name(1) == "one.png"  # rows of a larger set: lines count


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "x.png\n", "1 pictures for 2 faces"),
        ("a.csv", "picture\nx.png\n", "no column 'file'"),
        ("a.csv", "file,row\nx.png,7\n", "1 pictures for 2 faces"),
        ("a.xlsx", "x", "must be a folder"),
    ],
)
def test_bad_lists_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_images(tmp_path / name, n_faces=2)


def test_a_missing_root_is_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_images(tmp_path / "nowhere" / "list.txt", n_faces=2)


def test_nothing_outside_the_root_is_opened(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    secret = tmp_path / "secret.png"
    save_picture(secret)
    (root / "link.png").symlink_to(secret)
    (root / "circle.png").symlink_to(root / "circle.png")
    (root / "folder.png").mkdir()
    os.mkfifo(root / "pipe.png")
    names = ["../secret.png", str(secret), "link.png", "circle.png", "folder.png", "pipe.png", "gone.png", "a\0b.png"]
    (root / "list.txt").write_text("\n".join(names))
    images = load_images(root / "list.txt", n_faces=len(names))
    assert [images.find(row) for row in range(len(names))] == [None] * len(names)
    wider = load_images(root / "list.txt", n_faces=len(names), root=tmp_path)
    assert wider.find(1) == secret.resolve()  # an absolute path inside the root is fine


def test_thumbnails(tmp_path):
    save_picture(tmp_path / "wide.png", size=(400, 100))
    made = make_thumbnail(tmp_path / "wide.png", size=64)
    (tmp_path / "made.jpg").write_bytes(made)
    with image_module.open(tmp_path / "made.jpg") as picture:
        assert (picture.format, picture.size) == ("JPEG", (64, 16))
    turned = image_module.Exif()
    turned[0x0112] = 6  # lies on its side
    image_module.new("RGB", (40, 20)).save(tmp_path / "phone.jpg", exif=turned)
    (tmp_path / "made.jpg").write_bytes(make_thumbnail(tmp_path / "phone.jpg", size=64))
    with image_module.open(tmp_path / "made.jpg") as picture:
        assert picture.size == (20, 40)
    image_module.fromarray(np.full((20, 20), 300, np.int32).astype(np.uint16)).save(tmp_path / "deep.png")
    assert make_thumbnail(tmp_path / "deep.png", size=64) is not None


def test_hostile_pictures_have_no_thumbnail(tmp_path):
    hostile = {
        "empty.png": b"", "text.png": b"<script>alert(1)</script>", "huge.png": make_png_header(60000, 60000),
        "bomb.png": make_png_header(20000, 20000), "cut.png": make_png_header(30, 30),
        "script.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        "ps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }  # fmt: skip
    for name, content in hostile.items():
        (tmp_path / name).write_bytes(content)
        if name != "cut.png":
            assert make_thumbnail(tmp_path / name, size=64) is None, name
        else:
            make_thumbnail(tmp_path / name, size=64)  # a decoder may fill in what is missing; it must not raise
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(200 << 20)
    assert make_thumbnail(tmp_path / "sparse.png", size=64) is None
    assert make_thumbnail(tmp_path / "gone.png", size=64) is None
