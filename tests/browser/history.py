"""Rows of three months, as a gateway would have written them: users, sessions, tags, a canary, copies and failures."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.domain.request_log import RequestRecord
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from tests.browser.gateways import OperatedGateway

DAYS = 90
ROWS_A_DAY = 9
"""With what else there is, fewer than the 1,000 that ``wait_for_rows`` reads."""
ROWS_IN_LAST_HOUR = 50
DAY_MS = 86_400_000
_MODELS = ("m", "m", "m", "demo-chat", "endless")
_CANARY, _SHADOW = "broken", "demo-chat"
_FAILURES = (
    (429, "refused", "rate_limit_exceeded", "The key may make 600 requests a minute"),
    (404, "refused", "model_not_found", "No channel serves the model 'm2'"),
    (502, "failed", "upstream_error", "The provider broke off its answer"),
    (504, "failed", "upstream_timeout", "The provider has not answered within 60 s"),
)


async def make_history(desk: OperatedGateway, now_s: float) -> list[RequestRecord]:
    """Make rows of the 90 days before ``now_s``, and in the hour before it as many as a page of the list has."""
    keys = [key for key in (await desk.operate("GET", "/keys"))["data"] if key["name"] in {"laptop", "app", "test"}]
    account_ids = {one["name"]: one["id"] for one in (await desk.operate("GET", "/accounts"))["data"]}
    return list(_make_rows(keys, account_ids, int(now_s * 1000)))


async def store_history(path: Path, rows: Sequence[RequestRecord]) -> None:
    """Store rows in the database at ``path``, which no gateway uses at the moment."""
    database = await open_database(f"sqlite:///{path}")
    await LedgerRepository(database).post(rows)
    await database.close()


def _make_rows(keys: list[dict[str, Any]], account_ids: dict[str, int], now_ms: int) -> Iterator[RequestRecord]:
    dice = random.Random(1)  # noqa: S311 - the same rows each time
    count = DAYS * ROWS_A_DAY
    times = [now_ms - (count - number) * DAY_MS // ROWS_A_DAY - dice.randrange(DAY_MS // 20) for number in range(count)]
    times += [now_ms - 3_600_000 // ROWS_IN_LAST_HOUR * number for number in range(ROWS_IN_LAST_HOUR, 0, -1)]
    for number, settled_ms in enumerate(sorted(times)):
        key = dice.choice(keys)
        yield _make_row(number, settled_ms, key, account_ids[key["account"]], dice)


def _make_row(number: int, settled_ms: int, key: dict[str, Any], account_id: int, dice: random.Random) -> RequestRecord:
    luck, total_ms, prompt = dice.random(), dice.randrange(200, 6_000), dice.randrange(100, 4_000)
    failure = _FAILURES[number % len(_FAILURES)] if luck < 0.05 else None
    status, outcome, code, error = failure or (200, "completed", None, "")
    is_asked = failure is None or outcome == "failed"
    is_routed = is_asked and luck > 0.6
    model = "fast" if is_routed else dice.choice(_MODELS)
    is_shadow = is_routed and luck > 0.95
    served = "" if not is_routed else _SHADOW if is_shadow else _CANARY if luck < 0.65 else "m"
    completion = dice.randrange(10, 900) if failure is None else 0
    return RequestRecord(
        id=f"req_{number:08x}{dice.getrandbits(64):016x}",
        started_ms=settled_ms - total_ms,
        settled_ms=settled_ms,
        operation="chat",
        account_id=account_id,
        account=key["account"],
        key_id=key["id"],
        key_name=key["name"],
        model=model,
        channel=dice.choice(("relay", "spare", "studio")) if is_asked else None,
        status=status,
        outcome=outcome,  # type: ignore[arg-type]
        error_code=code,
        stream=luck > 0.4,
        attempts=int(is_asked),
        prompt_tokens=prompt if is_asked else 0,
        completion_tokens=completion,
        cached_tokens=prompt // 4 if failure is None else 0,
        usage_source="upstream" if is_asked else "none",
        cost_nanos=prompt * 100 + completion * 400 if failure is None else 0,
        reserved_nanos=2_000_000,
        overrun_nanos=0,
        first_byte_ms=total_ms // 3 if failure is None else None,
        total_ms=total_ms,
        error=error,
        route="fast" if is_routed else "",
        served_model=served,
        shadow=is_shadow,
        end_user=f"user-{int(40 * dice.random() ** 2)}",
        session=f"run-{number // 12}",
        tags=f"feature={('search', 'chat', 'drafts')[number % 3]},team={('web', 'app')[number % 2]}",
    )
