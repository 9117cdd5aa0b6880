"""The file of words that prompts may not have: read whole, at start and at every reload."""

from pathlib import Path

MAX_WORDS_MB = 2
"""Some 150,000 words, which take about a second to be read: the stream of a gateway that reloads stands as long."""


def read_words_text(path: Path) -> str:
    """The text of the file, without its byte order mark.

    Raises ``OSError`` where it cannot be read, and ``ValueError`` where it is larger than ``MAX_WORDS_MB`` or is not
    UTF-8; the text of either is for the operator and names the file.
    """
    limit = MAX_WORDS_MB * 1024 * 1024
    with path.open("rb") as stream:
        raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise ValueError(f"{path}: larger than {MAX_WORDS_MB} MB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}: line {line} is not UTF-8") from None
