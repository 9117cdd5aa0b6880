"""``gateway doctor`` asks the server of shared rate limits."""

import asyncio
from collections.abc import Sequence

from valkey.asyncio import Valkey

from gateway.config.schema import Config
from gateway.config.server_schema import ClusterSection, RateLimitsSection
from gateway.doctor.finding import Finding
from gateway.doctor.limits_check import check_limits
from tests.support.limit_servers import running_redis
from tests.support.postgres import SharedPostgres


async def check(url: str = "", *, store: str = "auto", in_cluster: bool = False) -> Sequence[Finding]:
    limits = RateLimitsSection(store=store, url=url)  # type: ignore[arg-type]
    config = Config(rate_limits=limits, cluster=ClusterSection(enabled=in_cluster))
    return await asyncio.to_thread(lambda: list(check_limits(config)))


async def test_a_gateway_alone_has_no_server() -> None:
    assert await check() == []


async def test_nodes_that_count_in_memory_admit_too_much() -> None:
    [found] = await check(store="memory", in_cluster=True)
    assert (found.check, found.state) == ("limits", "warning")


async def test_a_server_that_evicts_keys_is_a_warning_and_one_that_is_gone_a_problem() -> None:
    async with running_redis() as redis:
        found = await check(redis.url)
        assert found[-1].state in {"ok", "warning"}  # a busy machine may be slow
        assert "Redis" in found[-1].text or "Valkey" in found[-1].text
        assert not [one for one in found if "memory is full" in one.text]
        async with Valkey.from_url(redis.url) as client:
            await client.config_set("maxmemory", "100mb")
            await client.config_set("maxmemory-policy", "allkeys-lru")
        [warning] = [one for one in await check(redis.url) if "memory is full" in one.text]
        assert (warning.state, "noeviction" in warning.fix) == ("warning", True)
    [gone] = await check(redis.url.replace("://", "://user:hidden@"))
    assert (gone.state, "hidden" in gone.text) == ("problem", False)


async def test_a_database_that_counts_is_asked(shared_postgres: SharedPostgres) -> None:
    url = await shared_postgres.empty()
    found = await check(url)
    assert found[-1].state in {"ok", "warning"}
    assert "PostgreSQL" in found[-1].text
    [gone] = await check(f"{url}_that_is_missing")
    assert (gone.state, "hidden" in gone.text) == ("problem", False)
