"""Media: what a file is by its first bytes, and links that nobody else can make."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain import media
from tests.support.table_rows import table_rows

KEY = b"k" * 32
ID = "0123456789abcdef0123456789abcdef.png"
NOW = 1_750_000_000
LINK = re.compile(r"/media/(?P<id>[^?]*)\?expires=(?P<expires>[0-9]+)&signature=(?P<signature>[0-9a-f]{64})")


def box(*brands: bytes) -> bytes:
    """The first box of an ISO base media file: its major brand, a version, and what it is compatible with."""
    content = b"ftyp" + brands[0] + b"\0\0\2\0" + b"".join(brands[1:])
    return (len(content) + 4).to_bytes(4, "big") + content + b"\0\0\0\x08free"


HEADS = [
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
    (b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
    (b"\xff\xd8\xff\xdb", "image/jpeg"),
    (b"GIF87a\1\0", "image/gif"),
    (b"GIF89a\1\0", "image/gif"),
    (b"RIFF\x24\0\0\0WEBPVP8 ", "image/webp"),
    (box(b"avif", b"avif", b"mif1", b"miaf"), "image/avif"),
    (box(b"avis", b"avif", b"msf1"), "image/avif"),
    (box(b"mif1", b"miaf", b"avif"), "image/avif"),
    (box(b"heic", b"mif1", b"heic"), "image/heic"),
    (box(b"heix"), "image/heic"),
    (box(b"mif1", b"mif1", b"heic"), "image/heic"),
    (box(b"mif1"), "image/heic"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    (box(b"isom", b"isom", b"iso2", b"avc1", b"mp41"), "video/mp4"),
    (box(b"mp42"), "video/mp4"),
    (box(b"XAVC", b"XAVC", b"mp42"), "video/mp4"),
    (b"\x1a\x45\xdf\xa3\x9fB\x86\x81\1B\xf7\x81\1B\xf2\x81\4B\xf3\x81\x08B\x82\x84webmB\x87", "video/webm"),
    (box(b"qt  ", b"qt  "), "video/quicktime"),
    (box(b"M4A ", b"M4A ", b"mp42", b"isom"), "audio/mp4"),
    (b"ID3\4\0\0\0\0\0\x23", "audio/mpeg"),
    (b"\xff\xfb\x90\x64", "audio/mpeg"),
    (b"\xff\xf3\x84\xc4", "audio/mpeg"),
    (b"RIFF\x24\0\0\0WAVEfmt ", "audio/wav"),
    (b"OggS\0\2", "audio/ogg"),
    (b"fLaC\0\0\0\x22", "audio/flac"),
]
NOT_KEPT = [
    b"",
    b"\x89PNG",
    b"\xff\xd8",
    b"GIF88a",
    b"RIFF\x24\0\0\0AVI LIST",
    b"RIFF",
    b"\0\0\0\x18ftyp",
    box(b"crx ", b"crx ", b"isom")[:20],  # the compatible brand is not in what was read
    b"\0\0\0\x10ftypcrx \0\0\2\0isom",  # nor is this one in the box
    b"\x1a\x45\xdf\xa3\xa3B\x86\x81\1B\x82\x88matroskaB\x87",
    b"\xff\xf1\x50\x80",  # AAC
    b"\xff\xfe<\0s\0v\0g\0",  # UTF-16
    b"\xff\xfb\xff\0",
    b"\xff\xfb\x9c\0",
    b"\xff\xeb\x90\0",
    b"\xff\xfb",
    b"%PDF-1.7",
    b"<!DOCTYPE html><svg>",
    b"<html><svg></svg></html>",
    b"<?xml version='1.0'?><svgs>",
    b"<?xml version='1.0'?><html/>",
    b"<!-- <svg> -->",
    b"<!-- <svg>",
    b"text <svg>",
    b'{"error": "no"}',
]


@table_rows(("head", "media_type"), HEADS, ids=lambda value: repr(value)[:40])
def test_a_file_is_what_its_first_bytes_say(head: bytes, media_type: str) -> None:
    for rest in (b"", b"\0" * 10_000, b"<svg>" * 1_000):
        assert media.sniff_media(head + rest) == media_type
    assert media.sniff_image(head) == (media_type if media_type.startswith("image/") else None)


@table_rows("head", NOT_KEPT, ids=lambda value: repr(value)[:40])
def test_what_is_of_no_kind_that_is_kept_is_nothing(head: bytes) -> None:
    assert media.sniff_media(head) is None
    assert media.sniff_image(head) is None


def test_every_kind_that_is_kept_is_known_by_its_first_bytes() -> None:
    assert {media_type for _, media_type in HEADS} == media.EXTENSIONS.keys()


@given(st.binary(max_size=40) | st.builds(lambda head, rest: head[0] + rest, st.sampled_from(HEADS), st.binary()))
def test_any_bytes_are_of_a_kept_kind_or_of_none(head: bytes) -> None:
    assert media.sniff_media(head) in {None, *media.EXTENSIONS}
    assert media.sniff_image(head) in {None, media.sniff_media(head)}


BEFORE_SVG = st.one_of(
    st.text(" \t\r\n", min_size=1, max_size=5),
    st.text("<svg>-!? ", max_size=12).filter(lambda text: "--" not in f"{text}-").map("<!--{}-->".format),
    st.text("<svg>-! ", max_size=12).map("<?{}?>".format),
    st.sampled_from(
        [
            "<!DOCTYPE svg>",
            '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">',
            '<!DOCTYPE  svg\n[ <!ENTITY a "b"> ]\n>',
        ]
    ),
).map(str.encode)


@given(st.sampled_from([b"", b"\xef\xbb\xbf"]), st.lists(BEFORE_SVG, max_size=6), st.sampled_from([b" ", b">", b"/"]))
def test_an_svg_is_known_behind_all_that_may_stand_before_it(bom: bytes, before: list[bytes], after: bytes) -> None:
    prologue = bom + b"".join(before)
    assert media.sniff_image(prologue + b"<svg" + after) == "image/svg+xml"
    assert media.sniff_image(prologue + b"<svgx" + after) is None
    assert media.sniff_image(prologue + b"<html" + after + b"<svg>") is None
    assert media.sniff_image(prologue + b"x<svg" + after) is None


def test_an_svg_is_not_looked_for_for_ever() -> None:
    tag = b"<svg>"
    assert media.sniff_image(b" " * (media.SNIFF_BYTES - len(tag)) + tag) == "image/svg+xml"
    assert media.sniff_image(b" " * media.SNIFF_BYTES + tag) is None


@table_rows(
    "piece",
    [
        b" ", b"\n\t", b"<!---->", b"<!-- ", b"<??>", b"<?", b"<!DOCTYPE svg", b"<!DOCTYPE svg[]", b"<!DOCTYPE svg[]>",
        b"-->", b"<!--" + b"-" * 100, b"<svg", b"?>", b"[",
    ],
)  # fmt: skip
def test_no_bytes_make_it_try_every_way_to_read_them(piece: bytes) -> None:
    """Where something could be read in two ways, forty of it could be read in 2**40: this test would not end."""
    assert media.sniff_media(piece * (media.SNIFF_BYTES * 2 // len(piece))) is None
    assert media.sniff_media(b"<svg" + piece * 1_000) in {None, "image/svg+xml"}


@table_rows(("media_type", "extension"), media.EXTENSIONS.items())
def test_an_id_tells_what_kind_it_is_of(media_type: str, extension: str) -> None:
    assert media.find_media_type(f"{'a1' * 16}.{extension}") == media_type


@table_rows(
    "text",
    [
        "", ".", "..", "a" * 32, f"{'a' * 31}.png", f"{'a' * 33}.png", f"{'A' * 32}.png", f"{'g' * 32}.png",
        f"{'a' * 32}.PNG", f"{'a' * 32}.exe", f"{'a' * 32}.png\n", f"{'a' * 32}.png\0", f"\n{'a' * 32}.png",
        f"{'a' * 32}.png/", f"../{'a' * 32}.png", f"{'a' * 32}.png.gz", f"{'a' * 32}xpng", f"{'٣' * 32}.png",
        f"{'a' * 32}.pn\udc67", f"{'a' * 32}.html",
    ],
)  # fmt: skip
def test_anything_else_is_no_id(text: str) -> None:
    assert media.find_media_type(text) is None


def check(media_id: str, expires: str, signature: str, *, key: bytes = KEY, now_s: float = NOW) -> bool:
    return media.check_link(key, media_id, expires=expires, signature=signature, now_s=now_s)


def test_a_link_is_a_path_with_its_time_and_signature() -> None:
    found = LINK.fullmatch(media.build_link(KEY, ID, NOW + 60))
    assert found
    assert (found["id"], found["expires"]) == (ID, str(NOW + 60))
    assert check(ID, found["expires"], found["signature"])


def test_a_link_is_good_until_its_time() -> None:
    signature = media.sign_link(KEY, ID, NOW)
    assert check(ID, str(NOW), signature, now_s=NOW - 0.001)
    assert not check(ID, str(NOW), signature, now_s=NOW)
    assert not check(ID, str(NOW), signature, now_s=NOW + 1)


@given(st.text(st.characters()), st.integers(NOW + 1, 10**12 - 1))
def test_whatever_its_id_a_link_that_was_given_out_is_good(media_id: str, expires_s: int) -> None:
    assert check(media_id, str(expires_s), media.sign_link(KEY, media_id, expires_s))


TEXTS = st.text(max_size=70) | st.text("0123456789abcdef", min_size=64, max_size=64)
TIMES = st.integers(NOW + 1, 10**12 - 1).map(str) | st.text("0123456789 +-_.٣", max_size=14) | st.text(max_size=14)


@given(TEXTS, TIMES, TEXTS, st.integers(0, 63), st.sampled_from("0123456789abcdefABCDEF٣ "))
@example(ID + ":1", "750000060", "", 0, "0")
@example(ID, f"0{NOW + 60}", "", 0, "0")
@example(ID, f"{NOW + 60}\n", "", 0, "0")
@example(ID, f" {NOW + 60}", "", 0, "0")
@example(ID, f"+{NOW + 60}", "", 0, "0")
def test_any_change_of_id_time_or_signature_is_refused(
    media_id: str, expires: str, signature: str, at: int, digit: str
) -> None:
    good_time = str(NOW + 60)
    good = media.sign_link(KEY, ID, NOW + 60)
    one_digit = good[:at] + digit + good[at + 1 :]
    assert check(ID, good_time, good)
    assert check(media_id, good_time, good) is (media_id == ID)
    assert check(ID, expires, good) is (expires == good_time)
    assert check(ID, good_time, signature) is (signature == good)
    assert check(ID, good_time, one_digit) is (one_digit == good)
    assert not check(ID, good_time, good[:at])
    assert not check(ID, good_time, good + signature[:1] if signature else "")
    assert not check(ID, good_time, good.upper() if good.upper() != good else "")


@given(st.binary(min_size=1, max_size=40))
def test_another_key_makes_other_links(key: bytes) -> None:
    assert check(ID, str(NOW + 60), media.sign_link(KEY, ID, NOW + 60), key=key) is (key == KEY)


def test_no_link_outlives_every_number() -> None:
    """A time of any length would be a number to make, and to write."""
    assert not check(ID, "9" * 13, media.sign_link(KEY, ID, 10**13 - 1))
    assert not check(ID, "9" * 5_000, "0" * 64)
