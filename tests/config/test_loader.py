"""TOML, ``${ENV}`` and variables into the tree; the files that ship."""

import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.price_spec import PriceSpec
from gateway.config import schema
from gateway.config.loader import (
    ConfigError,
    find_data,
    read_config,
    read_declared_config,
    read_prices,
    read_words_file,
)
from gateway.config.merge import list_sections
from gateway.config.observability_schema import MetricsSection, TracingSection
from gateway.config.server_schema import ServerSection, StoreSection
from gateway.domain.setting import name_setting
from gateway.parsing import find_about
from tests.support.table_rows import table_rows

CHANNEL = '[[channel]]\nname = "up"\nprovider = "openai"\nsync = true\n'
COMMENTED = re.compile(r"^# ?((?:\[\[?[\w.]+\]\]?|\w+ = ).*)$", re.MULTILINE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


def read(path: Path, text: str, **environ: str) -> schema.Config:
    path.write_text(text)
    return read_config(path, environ)


def fail(path: Path | None, text: str = "", **environ: str) -> list[str]:
    if path:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path, environ)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_no_file_and_no_variables_are_the_defaults() -> None:
    assert read_config(None, {}) == schema.Config()


def test_every_problem_is_reported_at_once_with_the_file_and_the_path(path: Path) -> None:
    text = """
    sevrer = 1
    [server]
    prot = 1
    port = "x"
    [[channel]]
    name = "up"
    provider = "opanai"
    models = ["a", 5]
    api_key = "${NOT_SET}"
    [[key]]
    name = "k"
    """
    problems = fail(path, text, GATEWAY_SERVER__MAX_BODY_MB="many")
    assert all(problem.startswith((f"{path}: ", "environment variable GATEWAY_")) for problem in problems)
    assert {problem.split(": ")[1] for problem in problems} == {
        "sevrer", "server.prot", "server.port", "channel[0].provider", "channel[0].models[1]", "channel[0].api_key",
        "key[0].account", "key[0].secret", "server.max_body_mb",
    }  # fmt: skip
    message = "\n".join(problems)
    assert "did you mean 'server'?" in message
    assert "did you mean 'port'?" in message
    assert "did you mean 'openai'?" in message
    assert "NOT_SET" in message
    assert "environment variable GATEWAY_SERVER__MAX_BODY_MB: server.max_body_mb" in message


def test_a_section_of_a_former_name_is_understood_with_a_warning(path: Path) -> None:
    path.write_text('[limits]\nurl = "valkey://host"\n[[limit]]\nname = "x"\nof = "user"\nrpm = 1\n')
    declared = read_declared_config(path, {"GATEWAY_LIMITS__PREFIX": "team", "GATEWAY_RATE_LIMITS__WHEN_DOWN": "open"})
    section = declared.config.rate_limits
    assert (section.url, section.prefix, section.when_down) == ("valkey://host", "team", "open")
    assert declared.sources == {
        "rate_limits.url": "file",
        "rate_limits.prefix": "environment",
        "rate_limits.when_down": "environment",
    }
    assert declared.warnings == (
        "The section [limits] is now called [rate_limits]; the next version has only that name",
        "GATEWAY_LIMITS__PREFIX is now called GATEWAY_RATE_LIMITS__PREFIX; the next version has only that name",
    )
    path.write_text('[rate_limits]\nurl = "valkey://host"\n')
    assert read_declared_config(path, {}).warnings == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[limits]\nprefix = "a"\n[rate_limits]\nprefix = "b"\n', "limits: expected no section of this name beside"),
        ('[[limits]]\nname = "x"\n', "limits: unknown key; did you mean 'limit'?"),
        ("[limits]\nstor = 1\n", "rate_limits.stor: unknown key; did you mean 'store'?"),
    ],
)
def test_a_section_of_a_former_name_can_be_wrong(path: Path, text: str, problem: str) -> None:
    assert any(problem in found for found in fail(path, text)), fail(path, text)


@pytest.mark.parametrize("text", ["[server", "x", "a = 1\na = 2", "[server]\nport = 80 80", "a = \x00"])
def test_a_file_that_is_not_toml_is_a_problem_and_no_crash(path: Path, text: str) -> None:
    (problem,) = fail(path, text)
    assert problem.startswith(f"{path}: TOML: ")


@pytest.mark.parametrize("name", ["server", "a.b"])
def test_a_table_that_is_there_twice_is_named_with_what_to_do(path: Path, name: str) -> None:
    (problem,) = fail(path, f"[{name}]\nx = 1\n[{name}]\n")
    assert problem.startswith(
        f"{path}: TOML: The table [{name}] is there twice: put its keys under one heading (at line"
    )


def test_a_file_of_other_bytes_is_a_problem_and_no_crash(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError):
        read_config(path, {})


def test_a_file_that_cannot_be_read_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            read_config(path, {})


def test_a_reference_is_replaced_wherever_a_string_stands(path: Path) -> None:
    text = CHANNEL + 'api_keys = ["a-${ONE}", "${ONE}${TWO}"]\nheaders = { X = "${TWO}" }\nmodel_map = { a = "${ONE}" }'
    (section,) = read(path, text, ONE="1", TWO="$2${ONE}").channel
    assert section.api_keys == ("a-1", "1$2${ONE}")
    assert section.headers == {"X": "$2${ONE}"}
    assert section.model_map == {"a": "1"}


@pytest.mark.parametrize("around", ["{}\n", "\r\n {}\t", "{}"])
def test_white_space_around_a_variable_is_left_out(path: Path, around: str) -> None:
    master_key = "ab" * 32
    config = read(
        path,
        CHANNEL
        + 'api_key = "${SECRET}"\n[[account]]\nname = "a"\n[[key]]\nname = "k"\naccount = "a"\nsecret = "${KEY}"',
        SECRET=around.format("sk-provider"),
        KEY=around.format("sk-" + "x" * 40),
        GATEWAY_STORE__MASTER_KEY=around.format(master_key),
    )
    assert config.channel[0].api_key == "sk-provider"
    assert config.key[0].secret == "sk-" + "x" * 40
    assert config.store.master_key == master_key


def test_what_is_no_reference_stays_as_it_is(path: Path) -> None:
    (section,) = read(path, CHANNEL + 'headers = { X = "$ONE ${} ${1} $${x y}" }').channel
    assert section.headers == {"X": "$ONE ${} ${1} $${x y}"}


def test_a_variable_that_is_not_set_is_a_problem_where_it_is_used(path: Path) -> None:
    problems = fail(path, CHANNEL + 'api_keys = ["${A}", "${B}"]\nheaders = { X = "${A}" }')
    assert [problem.split(": ")[1] for problem in problems] == [
        "channel[0].api_keys[0]", "channel[0].api_keys[1]", "channel[0].headers.X"
    ]  # fmt: skip


@given(secret=st.text("abcXYZ01-_ ", min_size=5).map(lambda text: "hunter2" + text))
def test_no_problem_shows_what_a_variable_holds(tmp_path_factory: pytest.TempPathFactory, secret: str) -> None:
    path = tmp_path_factory.getbasetemp() / "secret.toml"
    text = (
        CHANNEL
        + 'api_key = "${S}"\napi_keys = "${S}"\nproxy = "${S}"\nheaders = { "a b" = "${S}" }\nweigth = "${S}"\n'
        + '[[account]]\nname = "a"\n[[key]]\nname = "k"\naccount = "a"\nsecret = "${S}"\n'
    )
    assert "hunter2" not in "\n".join(fail(path, text, S=secret))


SCALARS: dict[str, tuple[str, Any]] = {
    "SERVER__HOST": ("::1", "::1"),
    "SERVER__PORT": ("0", 0),
    "SERVER__BASE_URL": ("https://ai.example.com", "https://ai.example.com"),
    "SERVER__DRAIN_TIMEOUT_S": ("0.5", 0.5),
    "SERVER__SHUTDOWN_DELAY_S": ("1.5", 1.5),
    "SERVER__KEEPALIVE_TIMEOUT_S": ("7.5", 7.5),
    "SERVER__MAX_CONNECTIONS": ("100", 100),
    "SERVER__MAX_CONNECTIONS_PER_ADDRESS": ("50", 50),
    "SERVER__MAX_BODY_MB": ("64", 64),
    "SERVER__MAX_LOADED_MB": ("512", 512),
    "SERVER__MAX_UPLOAD_MB": ("256", 256),
    "SERVER__MAX_FILE_MB": ("50", 50),
    "SERVER__LOCAL_SIGN_IN": ("true", True),
    "SERVER__CORS_ORIGINS": ("https://a.example.com,http://b:1", ("https://a.example.com", "http://b:1")),
    "SERVER__LOG_FORMAT": ("json", "json"),
    "SERVER__TRUSTED_PROXIES": ("127.0.0.1, 10.0.0.0/8,", ("127.0.0.1", "10.0.0.0/8")),
    "STORE__URL": ("sqlite:////x.db", "sqlite:////x.db"),
    "STORE__MASTER_KEY": ("0a" * 32, "0a" * 32),
    "STORE__MEDIA_URL": ("s3://media/gw", "s3://media/gw"),
    "STORE__BODIES_URL": ("s3://bodies/gw", "s3://bodies/gw"),
    "LEDGER__ON_CRASH": ("charge", "charge"),
    "BILLING__REQUIRE_PRICE": ("yes", True),
    "BILLING__UNPRICED": ("free", "free"),
    "BILLING__ABANDONED": ("drain", "drain"),
    "BILLING__BURN_RATE": ("2.5", 2.5),
    "BILLING__ANOMALY_FACTOR": ("0", 0.0),
    "BILLING__ANOMALY_USD": ("0.5", 0.5),
    "ROUTING__AFFINITY": ("header", "header"),
    "ROUTING__AFFINITY_S": ("60", 60.0),
    "ROUTING__ALLOW_PREFER": ("true", True),
    "ROUTING__BALANCE": ("cost", "cost"),
    "ROUTING__DEMO": ("off", "off"),
    "ROUTING__MAX_ATTEMPTS": ("4", 4),
    "ROUTING__RETRY_RATIO": ("0.5", 0.5),
    "ROUTING__FAILOVER_AFTER_S": ("20", 20.0),
    "ROUTING__TRIP_FAILURES": ("7", 7),
    "ROUTING__TRIP_RATIO": ("1", 1.0),
    "ROUTING__COOLDOWN_S": ("2.5", 2.5),
    "ROUTING__MAX_COOLDOWN_S": ("60", 60.0),
    "ROUTING__WARM_UP_S": ("0", 0.0),
    "ROUTING__SHADOW_ACCOUNT": ("trials", "trials"),
    "ROUTING__SYNC_INTERVAL_S": ("30", 30.0),
    "MEDIA__LINK_HOURS": ("1.5", 1.5),
    "MEDIA__KEEP_HOURS": ("72", 72.0),
    "MEDIA__MAX_GB": ("0.5", 0.5),
    "SAFETY__WORDS_FILE": ("/dev/null", "/dev/null"),
    "EGRESS__ALLOW": ("10.0.0.0/8", ("10.0.0.0/8",)),
    "TRACING__ENDPOINT": ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
    "TRACING__SAMPLE_RATIO": ("0.01", 0.01),
    "TRACING__HEADERS": ("a=b,c=d=e", ("a=b", "c=d=e")),
    "METRICS__TOKEN": ("token-of-a-scraper", "token-of-a-scraper"),
    "METRICS__ALLOW": ("10.0.0.0/8", ("10.0.0.0/8",)),
}


PAIR = {"SERVER__TLS_CERTIFICATE": "/etc/cert.pem", "SERVER__TLS_KEY": "/etc/key.pem"}
"""Settings of which neither is valid alone."""


def test_every_setting_has_a_variable() -> None:
    sections = (
        ServerSection,
        StoreSection,
        schema.LedgerSection,
        schema.BillingSection,
        schema.RoutingSection,
        schema.MediaSection,
        schema.SafetySection,
        schema.EgressSection,
        MetricsSection,
        TracingSection,
    )
    keys = {f"{section.__name__.removesuffix('Section')}__{field.name}".upper()
            for section in sections for field in attrs.fields(section)}  # fmt: skip
    assert keys == set(SCALARS) | set(PAIR)


def test_variables_that_need_each_other_win_over_the_file_together(path: Path) -> None:
    text = '[server]\ntls_certificate = "x"\ntls_key = "y"\n'
    server = read(path, text, **{f"GATEWAY_{name}": value for name, value in PAIR.items()}).server
    assert (server.tls_certificate, server.tls_key) == tuple(PAIR.values())


@pytest.mark.parametrize("name", SCALARS)
def test_a_variable_wins_over_the_file(path: Path, name: str) -> None:
    text, value = SCALARS[name]
    section, key = name.lower().split("__")
    config = read(path, f"[{section}]\n{key} = 5\n", **{f"GATEWAY_{name}": text})
    assert getattr(getattr(config, section), key) == value
    assert attrs.evolve(config, **{section: type(getattr(config, section))()}) == schema.Config()
    assert read_config(None, {f"GATEWAY_{name}": text}) == config


@table_rows(
    ("name", "text", "message"),
    [
        ("GATEWAY_SERVER__PORT", "http", "server.port"),
        ("GATEWAY_SERVER__PORT", "99999", "server.port"),
        ("GATEWAY_SERVER__PROT", "1", "did you mean 'port'?"),
        ("GATEWAY_SEVRER__PORT", "1", "sections"),
        ("GATEWAY_CHANNEL__NAME", "x", "sections"),
        ("GATEWAY_SERVER__", "x", "unknown key"),
        ("GATEWAY_SERVER__TRUSTED_PROXIES", "10.0.0.1, proxy", "server.trusted_proxies"),
        ("GATEWAY_LEDGER__ON_CRASH", "refund", "ledger.on_crash"),
        ("GATEWAY_BILLING__REQUIRE_PRICE", "maybe", "billing.require_price"),
        ("GATEWAY_BILLING__UNPRICED", "maybe", "billing.unpriced"),
        ("GATEWAY_BILLING__ABANDONED", "refund", "billing.abandoned"),
        ("GATEWAY_BILLING__BURN_RATE", "-1", "billing.burn_rate"),
        ("GATEWAY_BILLING__ANOMALY_FACTOR", "1001", "billing.anomaly_factor"),
        ("GATEWAY_BILLING__ANOMALY_USD", "much", "billing.anomaly_usd"),
        ("GATEWAY_GROUP__NAME", "vip", "sections"),
        ("GATEWAY_ROUTING__MAX_ATTEMPTS", "3.5", "routing.max_attempts"),
        ("GATEWAY_ROUTING__COOLDOWN_S", "5s", "routing.cooldown_s"),
        ("GATEWAY_STORE__MASTER_KEY", "hunter2", "store.master_key"),
    ],
)
def test_a_bad_variable_is_a_problem_under_its_own_name(name: str, text: str, message: str) -> None:
    (problem,) = fail(None, **{name: text})
    assert problem.startswith(f"environment variable {name}: ")
    assert message in problem


def test_what_only_the_former_second_client_could_do_is_a_problem(path: Path) -> None:
    channel = '[[channel]]\nname = "up"\nprovider = "openai"\napi_key = "k"\nproxy = "https://proxy:3128"\n'
    problems = fail(path, f'[server]\nclient = "ordinary"\n{channel}', https_proxy="https://proxy:3128")
    assert [problem.partition("URL")[0] for problem in sorted(problems)] == [
        f"{path}: channel[0].proxy: expected none, or an http://, socks5:// or socks5h:// ",
        f"{path}: server.client: this version has one HTTP client for providers; delete the setting",
        "environment: https_proxy: expected an http://, socks5:// or socks5h:// ",
    ]
    (problem,) = fail(None, GATEWAY_SERVER__CLIENT="ordinary")
    assert problem.startswith("environment variable GATEWAY_SERVER__CLIENT: server.client: ")


def test_the_client_that_is_left_may_still_be_named(path: Path) -> None:
    assert read(path, '[server]\nclient = "wire"') == schema.Config()


def test_variables_of_others_are_left_alone() -> None:
    others = {"GATEWAY_DEV_KEY": "x", "GATEWAY": "x", "MY_GATEWAY_SERVER__PORT": "x", "gateway_server__port": "x"}
    assert read_config(None, others | {"GATEWAY_DISCOVER": "0", "SERVER__PORT": "x"}) == schema.Config()


def test_amounts_of_the_file_are_exact(path: Path) -> None:
    config = read(path, '[[price]]\nmodel = "m"\ninput_usd_per_million = 0.1\noutput_usd_per_million = 1e-9\n')
    assert config.price[0].input_usd_per_million == Decimal("0.1")
    assert config.price[0].price().output_nanos_per_million == 1


def test_the_file_that_ships_is_exactly_the_defaults() -> None:
    assert read_config(find_data("gateway.toml"), {}) == schema.Config()


def uncomment(text: str) -> dict[str, Any]:
    return tomllib.loads(COMMENTED.sub(r"\1", text))


def test_the_file_that_ships_mentions_every_key() -> None:
    tables = uncomment(find_data("gateway.toml").read_text())
    sections: dict[str, Any] = {field.name: field.type for field in attrs.fields(attrs.resolve_types(schema.Config))}
    assert set(tables) == set(sections)
    for name, kind in sections.items():
        table = set().union(*tables[name]) if isinstance(tables[name], list) else tables[name]
        section = kind if attrs.has(kind) else kind.__args__[0]
        assert set(table) == {field.name for field in attrs.fields(section)}, name


KEY_LINE = re.compile(r"# (\w+) = \S.*?\s{2,}# (.+)")
MORE = re.compile(r"#\s{20,}# (.+)")


def read_comments(text: str) -> dict[str, str]:
    """What the file says of every key of a section in single brackets, by its path."""
    body: dict[str, str] = {}
    section = path = ""
    for line in text.splitlines():
        if line.startswith(("[", "# [")):
            section = line.strip("# []") if "[[" not in line else ""
        key, more = KEY_LINE.match(line), MORE.match(line)
        if key:
            path = f"{section}.{key[1]}" if section else ""
        if path and (key or more):
            body[path] = f"{body.get(path, '')} {key[2] if key else more[1]}".strip()  # type: ignore[index]
        elif not more:
            path = ""
    return body


def test_the_file_that_ships_says_of_every_setting_what_the_console_says() -> None:
    body = {
        name_setting(section, field.name): find_about(field)
        for section, part in list_sections(schema.Config())
        for field in attrs.fields(type(part))
    }
    assert all(body.values())
    assert read_comments(find_data("gateway.toml").read_text()) == body


def test_who_says_what_is_known(path: Path) -> None:
    path.write_text('[server]\nport = 8080\n[routing]\nmax_attempts = 4\n[[group]]\nname = "vip"\n' + CHANNEL)
    declared = read_declared_config(path, {"GATEWAY_ROUTING__MAX_ATTEMPTS": "5", "GATEWAY_MEDIA__MAX_GB": "1"})
    assert declared.sources == {
        "server.port": "file",
        "routing.max_attempts": "environment",
        "media.max_gb": "environment",
    }
    assert declared.config == read_config(path, {"GATEWAY_ROUTING__MAX_ATTEMPTS": "5", "GATEWAY_MEDIA__MAX_GB": "1"})
    assert read_declared_config(None, {}).sources == {}


def test_a_relative_file_of_words_is_beside_the_file_that_names_it(tmp_path: Path) -> None:
    """Wherever the gateway is started from; what the environment names is beside where it was started."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "words.txt").write_text("one\n")
    path = tmp_path / "gateway.toml"
    path.write_text('[safety]\nwords_file = "lists/words.txt"\n')
    config = read_config(path, {})
    assert config.safety.words_file == str(tmp_path / "lists" / "words.txt")
    assert read_words_file(config) is not None
    path.write_text(f'[safety]\nwords_file = "{tmp_path}/lists/words.txt"\n')
    assert read_config(path, {}) == config
    with pytest.raises(ConfigError, match=r"lists/words\.txt: No such file"):
        read_config(path, {"GATEWAY_SAFETY__WORDS_FILE": "lists/words.txt"})
    path.write_text('[safety]\nwords_file = ""\n')
    assert read_config(path, {}) == schema.Config()


SINK = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-2"}
ALERT = {"ALERT_URL": "https://example.com/alerts", "ALERT_SECRET": "0123456789abcdef01234567"}


def test_the_file_that_ships_is_valid_with_everything_in_it(path: Path) -> None:
    text = COMMENTED.sub(r"\1", find_data("gateway.toml").read_text())
    secrets = {"OPENAI_API_KEY": "k", "GATEWAY_DEV_KEY": "sk-0123456789abcdef", "SIGN_IN_SECRET": "s", **ALERT, **SINK}
    config = read(path, text, **secrets)
    assert (config.server, config.store) == (ServerSection(), StoreSection())
    assert (config.ledger, config.billing, config.routing) == (
        schema.LedgerSection(),
        schema.BillingSection(),
        schema.RoutingSection(),
    )
    assert config.videos == schema.VideosSection()
    tables = (config.channel, config.group, config.account, config.key, config.price, config.model)
    assert [len(table) for table in tables] == [1] * 6


def test_the_file_that_ships_is_what_people_find_in_the_checkout() -> None:
    for name in ("gateway.toml", "prices.toml"):
        assert find_data(name).is_file()
        assert find_data(name).parent.name in {"config", "_config"}
    assert find_data("nothing.toml").name == "nothing.toml"


def test_the_prices_that_ship_are_read() -> None:
    prices = read_prices(schema.Config())
    shipped = tomllib.loads(find_data("prices.toml").read_text())["price"]
    assert shipped
    known = prices.find("gpt-4o")
    assert known is not None
    assert known.output_nanos_per_million > 0
    assert prices.find("no such model") is None


def test_the_files_own_price_wins_over_the_one_that_ships() -> None:
    mine = PriceSpec("demo-chat", input_usd_per_million=Decimal(7))
    prices = read_prices(schema.Config(price=(mine,)))
    assert prices.find("demo-chat") == mine.price()
    theirs = PriceSpec("demo-*", input_usd_per_million=Decimal(8))
    prices = read_prices(schema.Config(price=(mine,)), [theirs])
    assert [prices.find(name) for name in ("demo-chat", "demo-embedding")] == [mine.price(), theirs.price()]


def test_tables_that_disagree_are_told_together_with_keys_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[server]\nport = "x"\n'
        '[[channel]]\nname = "a"\nprovider = "nobody"\n'
        '[[channel]]\nname = "a"\nprovider = "openai"\nmodels = ["m"]\n'
        '[[key]]\nname = "k"\naccount = "nobody"\nsecret = "sk-1234567890123"\n'
    )
    with pytest.raises(ConfigError) as caught:
        read_config(path, {})
    message = "\n".join(caught.value.problems)
    for where in ("server.port", "channel[0].provider", "channel[1].name", "key[0].account"):
        assert f"{path}: {where}: expected" in message
