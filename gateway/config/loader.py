"""Reads the configuration: TOML, ``${NAME}`` references and ``GATEWAY_<SECTION>__<KEY>`` variables.

Problems of keys are reported together, each with its source, the path of the key and the expected value. Also reads
the built-in prices and the word list.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import attrs

from gateway.billing.price_spec import PriceSpec
from gateway.config.built_in_prices import BuiltInPrices
from gateway.config.merge import FileConfig
from gateway.config.schema import Config
from gateway.deferred import defer_function
from gateway.domain.price import Price, PriceLayer, PriceList
from gateway.domain.setting import Source, name_setting
from gateway.parsing import EnvText, Problem, ValidationErrors, join_path, parse_table
from gateway.providers.registry import LOCAL_SLUGS
from gateway.upstream.environment_proxy import EXPECTED_PROXY, list_tls_proxies

if TYPE_CHECKING:
    from gateway.media.word_filter import WordList

ENV_PREFIX = "GATEWAY_"
_parse_words = defer_function("media.word_filter:parse_words")  # its patterns take 20 ms to compile
_ENV_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


_FORMER_SECTIONS = {"limits": "rate_limits"}
"""Sections that were renamed in this version, and their present names."""
_FILES = (("safety", "words_file"), ("server", "tls_certificate"), ("server", "tls_key"))


class ConfigError(Exception):
    """The problems of a configuration, one per line, for the operator."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


_DECLARED_TWICE = re.compile(r"Cannot declare \((.+?),?\) twice")
"""The parser's message about a table that is declared twice: its name is a tuple."""
_FREE_PRICES = tuple(Price("*", provider=slug) for slug in (*LOCAL_SLUGS, "demo"))
"""Local servers and the demo cost nothing unless the configuration prices their models."""


def read_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Read the configuration from the file ``path``, if any, and the environment. Raises ``ConfigError``."""
    return read_declared_config(path, environ).config


def read_declared_config(path: Path | None, environ: Mapping[str, str]) -> FileConfig:
    """Read the configuration with the source of each setting. Raises ``ConfigError``."""
    label = str(path) if path else "environment"
    raw_tables, problems = _read_toml(path) if path else ({}, [])
    expanded_tables = _expand(raw_tables, "", environ, problems)
    warnings = _rename_sections(expanded_tables, environ, problems)
    if path:
        _resolve_paths(expanded_tables, path.parent)
    sources: dict[str, Source] = dict.fromkeys(_list_keys(expanded_tables), "file")
    from_env = _apply_environment(expanded_tables, environ, problems)
    _check_client(expanded_tables, problems)
    sources |= dict.fromkeys(from_env, "environment")
    for name in list_tls_proxies(environ):
        from_env[name] = "environment"
        problems.append((name, f"expected {EXPECTED_PROXY}"))
    config = Config()
    try:
        config = parse_table(expanded_tables, Config)
    except ValidationErrors as error:
        # An unset variable has already been reported: skip problems of the empty value that replaced it.
        reported_places = [key_path for key_path, _ in problems]
        problems += [problem for problem in error.problems if not _has_problem_in(problem[0], reported_places)]
    if problems:
        raise ConfigError(
            [f"{from_env.get(key_path, label)}: {key_path}: {problem_text}" for key_path, problem_text in problems]
        )
    read_words_file(config)  # only to report its problems; the word filter reads it again
    return FileConfig(config, sources, tuple(warnings))


def _check_client(tables: dict[str, Any], problems: list[Problem]) -> None:
    """Remove ``server.client``, a setting of older versions. Any value other than its old default is a problem."""
    server = tables.get("server")
    if isinstance(server, dict) and server.pop("client", "wire") != "wire":
        problems.append(("server.client", "this version has one HTTP client for providers; delete the setting"))


def _rename_sections(tables: dict[str, Any], environ: Mapping[str, str], problems: list[Problem]) -> list[str]:
    """Rename sections with former names.

    Return a warning for each, and for each variable with a former name.
    """
    warnings = []
    for former, section in _FORMER_SECTIONS.items():
        if isinstance(tables.get(former), dict):
            warnings.append(f"The section [{former}] is now called [{section}]; the next version has only that name")
            if section in tables:
                problems.append((former, f"expected no section of this name beside [{section}], its present name"))
            tables.setdefault(section, tables.pop(former))
        prefix = f"{ENV_PREFIX}{former}__".upper()
        for name in sorted(environ):
            if name.startswith(prefix):
                present_name = f"{ENV_PREFIX}{section}__".upper() + name.removeprefix(prefix)
                warnings.append(f"{name} is now called {present_name}; the next version has only that name")
    return warnings


def _resolve_paths(tables: dict[str, Any], folder: Path) -> None:
    """Resolve relative file paths against the configuration file's folder."""
    for section, key in _FILES:
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str) and table[key]:
            table[key] = str(folder / table[key])


def _list_keys(tables: Mapping[str, Any]) -> Iterator[str]:
    for section in _list_sections():
        table = tables.get(section)
        yield from (name_setting(section, key) for key in (table if isinstance(table, dict) else ()))


def _list_sections() -> set[str]:
    return {field.name for field in attrs.fields(Config) if attrs.has(_strip_none(field.type))}


def _has_problem_in(key_path: str, paths: list[str]) -> bool:
    return any(path == key_path or path.startswith((f"{key_path}.", f"{key_path}[")) for path in paths)


def read_prices(config: Config, console: Iterable[PriceSpec] = ()) -> PriceList:
    """Return the file's prices, then the console's, then the built-in ones. Local models and the demo are free."""
    layers = ([spec.price() for spec in specs] for specs in (config.price, console))
    return PriceList(*layers, _FREE_PRICES, read_shipped_prices())


def read_shipped_prices() -> PriceList:
    """Return the built-in prices."""
    return _read_shipped_prices(find_data("prices.toml"))


@lru_cache(1)
def _read_shipped_prices(path: Path) -> PriceList:
    """Index the built-in prices, once per process."""
    prices = BuiltInPrices(path.read_text(encoding="utf-8"))
    return PriceList(PriceLayer(prices, prices.list_free_providers()))


def read_words_file(config: Config) -> "WordList | None":
    """Read ``safety.words_file``; None if it is not set. Raises ``ConfigError``."""
    file_name = config.safety.words_file
    if not file_name:
        return None
    try:
        text = read_words_text(Path(file_name))
    except OSError as error:
        raise ConfigError([f"safety.words_file: {file_name}: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigError([f"safety.words_file: {error}"]) from None
    return _build_words(text)


@lru_cache(1)
def _build_words(text: str) -> "WordList":
    """Parse a word list. A long list takes up to a second, so a reload reuses the result for an unchanged file."""
    words: WordList = _parse_words(text)
    return words


def find_data(name: str) -> Path:
    """Return the path of a file of ``config/``: inside the package in a wheel, beside the package in a checkout."""
    package = Path(str(files("gateway")))
    packaged_path = package / "_config" / name
    return packaged_path if packaged_path.exists() else package.parent / "config" / name


def _explain_duplicate(match: re.Match[str]) -> str:
    """Return the error message for a table that is declared twice, and a way to fix it."""
    name = ".".join(part.strip(" '\"") for part in match[1].split(","))
    return f"The table [{name}] is there twice: put its keys under one heading"


def _read_toml(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream, parse_float=Decimal), []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return {}, [("TOML", _DECLARED_TWICE.sub(_explain_duplicate, str(error)))]
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None


def _expand(value: Any, key_path: str, environ: Mapping[str, str], problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return {key: _expand(item, join_path(key_path, key), environ, problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, f"{key_path}[{index}]", environ, problems) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environ:
            problems.append((key_path, f"expected the environment variable {name} to be set"))
        return environ.get(name, "").strip()  # values read from secret files often end with a line feed

    return _ENV_REFERENCE.sub(look_up, value)


def _apply_environment(
    raw_tables: dict[str, Any], environ: Mapping[str, str], problems: list[Problem]
) -> dict[str, str]:
    """Apply ``GATEWAY_<SECTION>__<KEY>`` variables to ``raw_tables``; return the variable of each set path."""
    tables = _list_sections()
    sources: dict[str, str] = {}
    for name in sorted(environ):
        section, separator, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        if not name.startswith(ENV_PREFIX) or not separator:
            continue
        section = _FORMER_SECTIONS.get(section, section)
        key_path = f"{section}.{key}"
        sources[key_path] = f"environment variable {name}"
        table = raw_tables.setdefault(section, {}) if section in tables else None
        if isinstance(table, dict):
            table[key] = EnvText(environ[name].strip())
        else:
            sources[section] = sources[key_path]
            problems.append((section, f"expected one of the sections {', '.join(sorted(tables))}"))
    return sources


def _strip_none(kind: Any) -> Any:
    if get_origin(kind) in {Union, UnionType}:
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


MAX_WORDS_MB = 2
"""Maximum size of the word list: about 150,000 words, whose parsing takes about a second."""


def read_words_text(path: Path) -> str:
    """Return the text of a word file without its byte order mark. Raises ``OSError``, ``ValueError``."""
    limit = MAX_WORDS_MB * 1024 * 1024
    with path.open("rb") as stream:
        raw_bytes = stream.read(limit + 1)
    if len(raw_bytes) > limit:
        raise ValueError(f"{path}: larger than {MAX_WORDS_MB} MB")
    try:
        return raw_bytes.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw_bytes.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}: line {line} is not UTF-8") from None
