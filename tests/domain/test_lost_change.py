"""Of a lost edit, only what takes rights away is found, and never more than the object has now."""

from typing import Any

from gateway.domain.lost_change import find_restrictions
from tests.support.table_rows import table_rows

STORED: dict[str, Any] = {
    "status": "active", "expires_at": None, "quota_usd": 100.0, "quota_period": "monthly", "quota_status": None,
    "rpm": 60, "tpm": None, "max_concurrency": None, "burst": None, "models": [], "groups": ["a", "b"],
    "allow_ips": ["10.0.0.0/8"], "group": "a", "locked": ["rpm"], "name": "k", "webhook_url": None,
}  # fmt: skip


@table_rows(
    "detail, taken, stored",
    [
        ({"status": ["active", "disabled"]}, {"status": "disabled"}, {}),
        ({"status": ["active", "disabled"]}, {}, {"status": "disabled"}),
        ({"status": ["disabled", "active"]}, {}, {"status": "disabled"}),
        ({"expires_at": [None, "2027-01-01T00:00:00Z"]}, {"expires_at": "2027-01-01T00:00:00Z"}, {}),
        ({"expires_at": ["2027-01-01T00:00:00Z", None]}, {}, {"expires_at": "2027-01-01T00:00:00Z"}),
        ({"rpm": [60, 6]}, {"rpm": 6}, {}),
        ({"rpm": [60, 6]}, {}, {"rpm": 5}),
        ({"rpm": [60, 600]}, {}, {}),
        ({"rpm": [60, None]}, {}, {}),
        ({"tpm": [None, 10], "max_concurrency": [None, 1], "burst": [None, 2]},
         {"tpm": 10, "max_concurrency": 1, "burst": 2}, {}),
        ({"quota_usd": [100.0, 10.0]}, {"quota_usd": 10.0, "quota_period": "monthly"}, {}),
        ({"quota_usd": [100.0, 0.0]}, {"quota_usd": 0.0, "quota_period": "monthly"}, {}),
        ({"quota_usd": [100.0, None], "quota_period": ["monthly", "none"]}, {}, {}),
        ({"quota_usd": [None, 5.0], "quota_period": ["none", "lifetime"]},
         {"quota_usd": 5.0, "quota_period": "lifetime"}, {"quota_usd": None, "quota_period": "none"}),
        ({"quota_period": ["monthly", "lifetime"]}, {"quota_usd": 100.0, "quota_period": "lifetime"}, {}),
        ({"quota_period": ["monthly", "daily"]}, {}, {}),
        ({"quota_usd": [100.0, 10.0], "quota_period": ["monthly", "daily"]}, {}, {}),
        ({"models": [[], ["m-1"]]}, {"models": ["m-1"]}, {}),
        ({"models": [["m-1"], []]}, {}, {"models": ["m-1"]}),
        ({"models": [["m-*"], ["m-1"]]}, {"models": ["m-1"]}, {"models": ["m-*"]}),
        ({"models": [["m-1", "x"], ["m-*"]]}, {"models": ["m-1"]}, {"models": ["m-1", "x"]}),
        ({"models": [["m-1"], ["m-*"]]}, {}, {"models": ["m-1"]}),
        ({"models": [["m-1"], ["x"]]}, {"models": ["x"]}, {"models": ["m-1"]}),
        ({"groups": [["a", "b"], ["b", "c"]]}, {"groups": ["b"]}, {}),
        ({"allow_ips": [["10.0.0.0/8"], ["10.1.0.0/16", "::/0"]]}, {"allow_ips": ["10.1.0.0/16"]}, {}),
        ({"allow_ips": [["10.0.0.0/8"], ["0.0.0.0/0"]]}, {}, {}),
        ({"group": ["a", "b"]}, {"group": "b"}, {}),
        ({"group": ["a", None]}, {"group": None}, {}),
        ({"group": [None, "a"]}, {}, {"group": None}),
        ({"locked": [["rpm"], ["rpm", "tpm"]]}, {"locked": ["rpm", "tpm"]}, {}),
        ({"locked": [["rpm"], []]}, {}, {}),
        ({"name": ["k", "l"], "webhook_url": "changed", "quota_status": [None, 429], "other": [1, 0]}, {}, {}),
    ],
)  # fmt: skip
def test_only_what_takes_rights_away_is_found(
    detail: dict[str, Any], taken: dict[str, Any], stored: dict[str, Any]
) -> None:
    assert find_restrictions(STORED | stored, detail) == taken
