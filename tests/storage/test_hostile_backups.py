"""A backup that was damaged, or made to do damage, is refused with words before anything of it is kept."""

import asyncio
import gzip
import io
import os
import tarfile
import tempfile
from hashlib import sha256
from itertools import islice
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.storage import restore
from gateway.storage.backup import FORMAT, BackupSource, write_backup
from gateway.storage.backup_encryption import BackupUnreadable, EncryptingWriter
from gateway.storage.backup_members import read_members
from gateway.storage.restore import RestoreRefused, restore_backup
from tests.support.gateway import furnish, make_template

pytestmark = pytest.mark.usefixtures("cheap_passphrases")
PASSPHRASE = "correct horse"
HOLES = 8 * 1024 * 1024


def head(name: str = "gateway.db", size: int = 0, kind: bytes = tarfile.REGTYPE, **more: object) -> bytes:
    """The header of one member, as GNU tar writes numbers that are too large for octal digits."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for field, value in more.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def record(data: bytes) -> bytes:
    return head("pax", len(data), b"x") + pad(data)


def write_manifest(**members: object) -> bytes:
    manifest = {"format": FORMAT, "version": "1", "schema": "0001", "members": members}
    data = orjson.dumps(manifest)
    return head("manifest.json", len(data)) + pad(data)


def mend(block: bytes, at: int, field: bytes) -> bytes:
    """A header with another field and the right checksum."""
    block = block[:at] + field + block[at + len(field) :]
    sums = b"%06o\0 " % tarfile.calc_chksums(block)[0]  # type: ignore[attr-defined]
    return block[:148] + sums + block[156:]


END = bytes(1024)
NO_FILE = "no file of a backup"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "more than the disk has": (head(size=2**60), "times its size|room"),
    "more than a number has": (head(size=2**80), "times its size|room"),
    "a negative size": (head(size=-1), "negative"),
    "a negative time": (head(mtime=-5), "negative"),
    "a secret that is large": (head("pepper", 70_000) + bytes(70_144) + END, "pepper has 70000 bytes"),
    "a manifest that is large": (head("manifest.json", 2**27), "manifest.json has"),
    "a configuration that is large": (head("gateway.toml", 2**25), "gateway.toml has"),
    "a record that is large": (head("pax", 2**40, b"x"), "record in it is too long"),
    "a record with a path": (record(b"20 path=/etc/passwd\n") + head() + END, NO_FILE),
    "a record with a size that is none": (record(b"12 size=-5\n") + head() + END, NO_FILE),
    "a record with a size of many digits": (record(b"999 size=%s\n" % (b"9" * 900)) + head() + END, NO_FILE),
    "records of records": (record(b"") * 5_000, NO_FILE),
    "a record and no member": (record(b"") + END, "cut off"),
    "a long name": (head("n", 2**40, b"L"), NO_FILE),
    "a sparse file": (head(kind=b"S"), NO_FILE),
    "a device": (head("gateway.db", kind=tarfile.CHRTYPE, devmajor=1, devminor=5), NO_FILE),
    "a block device": (head(kind=tarfile.BLKTYPE), NO_FILE),
    "a pipe": (head(kind=tarfile.FIFOTYPE), NO_FILE),
    "a link": (head("pepper", kind=tarfile.SYMTYPE, linkname="/etc/passwd"), NO_FILE),
    "a hard link": (head("pepper", kind=tarfile.LNKTYPE, linkname="/etc/passwd"), NO_FILE),
    "a folder": (head("media", kind=tarfile.DIRTYPE), NO_FILE),
    "an unknown kind": (head(kind=b"Z"), NO_FILE),
    "no name": (head(""), NO_FILE),
    "a name that is no text": (mend(head(), 0, b"\xff\xfe"), NO_FILE),
    "a path upwards": (head("../../etc/passwd"), NO_FILE),
    "a path from the root": (head("/etc/passwd"), NO_FILE),
    "a size that is no number": (mend(head(), 124, b"not a number"), "damaged"),
    "a wrong checksum": (head()[:-1] + b"x", "damaged"),
    "a member twice": (head("pepper") * 2 + END, NO_FILE),
    "a manifest of no object": (head("manifest.json", 2) + pad(b"[]") + END, "manifest is damaged"),
    "a manifest that nests": (head("manifest.json", 90_000) + pad(b"[" * 90_000) + END, "manifest is damaged"),
    "a manifest of odd members": (write_manifest(**{"gateway.db": 5}) + END, "manifest is damaged: 'gateway.db'"),
    "a manifest without them": (write_manifest() + head() + END, "gateway.db is not what"),
    "a manifest with more": (write_manifest(**{"gateway.db": {"bytes": 1, "sha256": ""}}) + END, "gateway.db is not"),
    "no database": (write_manifest() + END, "no database"),
    "no end": (write_manifest(), "before its manifest"),
    "something behind its end": (write_manifest() + END + b"x", "behind its end"),
    "much behind its end": (write_manifest() + END + bytes(2**21), "behind its end"),
    "nothing": (b"", "before its manifest"),
    "text": (b"hello " * 1000, "damaged"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_backup_is_refused_before_it_is_unpacked(tmp_path: Path, case: str) -> None:
    content, reason = HOSTILE[case]
    backup = tmp_path / "b.gwb"
    backup.write_bytes(gzip.compress(content, 1))
    with pytest.raises(RestoreRefused, match=reason):
        restore_backup(backup, tmp_path / "far" / "new")
    assert list(tmp_path.iterdir()) == [backup]


@pytest.mark.parametrize(
    "field", ["version", "created", "schema", "media", "media_store", "master_key_file", "database"]
)
@pytest.mark.parametrize("value", [5, None, [], "\x1b[2J", "x" * 2000])
def test_the_fields_of_a_manifest_are_of_their_kind(tmp_path: Path, field: str, value: object) -> None:
    data = orjson.dumps({"format": FORMAT, "version": "1", "schema": "0001", "members": {}, field: value})
    backup = tmp_path / "b.gwb"
    backup.write_bytes(gzip.compress(head("manifest.json", len(data)) + pad(data) + END))
    with pytest.raises(RestoreRefused, match=f"manifest is damaged: {field}"):
        restore_backup(backup, tmp_path / "new")


def test_zeros_that_unpack_for_ever_are_not_written(tmp_path: Path) -> None:
    """Its first member alone has a thousand times the size of the backup."""
    backup, zeros = tmp_path / "b.gwb", restore.MIN_LIMIT_BYTES + 1
    with gzip.open(backup, "wb", 1) as packed:
        packed.write(head(size=zeros))
    with pytest.raises(RestoreRefused, match=f"more than {restore.MAX_RATIO} times its size"):
        restore_backup(backup, tmp_path / "new")


def test_members_are_counted() -> None:
    class Endless(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return head()[:size]

    members = islice(read_members(Endless(), max_members=1_000), 1_000, None)
    with pytest.raises(BackupUnreadable, match=NO_FILE):
        next(members)


@pytest.mark.parametrize("content", [b"", b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_database_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    about = {"bytes": len(content), "sha256": sha256(content).hexdigest()}
    backup = tmp_path / "b.gwb"
    whole = head("gateway.db", len(content)) + pad(content) + write_manifest(**{"gateway.db": about}) + END
    backup.write_bytes(gzip.compress(whole))
    with pytest.raises(RestoreRefused, match=r"database in the backup.*Nothing was restored"):
        restore_backup(backup, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [backup]


class Backups:
    """The bytes of one data folder's backups."""

    def __init__(self, plain: bytes, encrypted: bytes) -> None:
        self.plain = plain
        self.encrypted = encrypted
        self.files = _restore(plain)


async def _furnish(folder: Path, template_path: Path) -> None:
    if not template_path.exists():
        await make_template(template_path)
    await furnish(folder, template_path, declared=False)


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory, template_path: Path) -> Backups:
    """A real backup, plain and encrypted."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    folder.mkdir()
    asyncio.run(_furnish(folder, template_path))
    made = []
    for number, passphrase in enumerate((None, PASSPHRASE)):
        write_backup(BackupSource(folder, folder / "gateway.db"), folder / f"{number}.gwb", passphrase=passphrase)
        made.append((folder / f"{number}.gwb").read_bytes())
    return Backups(*made)


def damage(data: bytes, kind: str, at: float, count: int) -> bytes:
    place = int(at * (len(data) - 1))
    before, here, after = data[:place], data[place : place + count], data[place + count :]
    if kind == "flip":
        return before + bytes([data[place] ^ (count % 255 + 1)]) + data[place + 1 :]
    return {"cut": before, "drop": before + after, "swap": before + after[:count] + here + after[count:]}[kind]


_DAMAGE = {
    "kind": st.sampled_from(["flip", "cut", "drop", "swap"]),
    "at": st.floats(0, 1),
    "count": st.sampled_from([1, 7, 512, 1024, 65_552]),
}


def _restore(data: bytes, passphrase: str = "") -> dict[str, bytes] | None:
    """The files that are restored; None if the backup is refused with words, and nothing is left."""
    with tempfile.TemporaryDirectory() as name:
        backup, target = Path(name, "b.gwb"), Path(name, "new")
        backup.write_bytes(data)
        try:
            restore_backup(backup, target, passphrase=passphrase)
        except RestoreRefused as error:
            refused = str(error)
        else:
            return {path.name: path.read_bytes() for path in target.iterdir()}
        assert refused.isprintable()
        assert list(Path(name).iterdir()) == [backup]
        return None


@settings(max_examples=40, deadline=None)
@given(packed=st.booleans(), **_DAMAGE)
def test_whatever_is_done_to_a_backup_is_refused_with_words(
    backups: Backups, packed: bool, kind: str, at: float, count: int
) -> None:
    """To the file, or to the tar file in it, whose checksum then fits."""
    whole = backups.plain
    if packed:
        changed = damage(whole, kind, at, count)
    else:
        changed = gzip.compress(damage(gzip.decompress(whole), kind, at, count), 1)
    restored = _restore(changed)
    assert restored is None or restored == backups.files, "no more than padding was damaged"


@settings(max_examples=8, deadline=None)
@given(outside=st.booleans(), **_DAMAGE)
def test_whatever_is_done_to_an_encrypted_backup_is_refused_with_words(
    backups: Backups, outside: bool, kind: str, at: float, count: int
) -> None:
    """To the file, or to what one who knows the passphrase has encrypted."""
    if outside:
        changed = damage(backups.encrypted, kind, at, count)
    else:
        sink = io.BytesIO()
        writer = EncryptingWriter(sink, PASSPHRASE)
        writer.write(damage(backups.plain, kind, at, count))
        writer.finish()
        changed = sink.getvalue()
    restored = _restore(changed, PASSPHRASE)
    assert restored is None or restored == backups.files


def test_a_passphrase_of_any_bytes_is_a_wrong_one_at_most(backups: Backups) -> None:
    assert _restore(backups.encrypted, PASSPHRASE) == backups.files
    assert not _restore(backups.encrypted, os.fsdecode(b"\xff\xfe"))
