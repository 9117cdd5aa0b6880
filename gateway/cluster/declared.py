"""The accounts and keys in the configuration files of nodes, stored once by the first node that has them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from gateway.auth.declared import digest_declared
from gateway.cluster.config_digest import compute_digest
from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.state.declarations import Declarations
from gateway.config.schema import Config
from gateway.storage.database import Database
from gateway.storage.nodes import list_nodes

log = structlog.stdlib.get_logger(__name__)


class NodeFiles:
    """Compares the accounts and keys that this node's configuration file declares with those of other nodes' files.

    ``pepper``: the key of the digests by which files are compared.
    """

    def __init__(self, node: ClusterNode, database: Database, pepper: bytes) -> None:
        self._node = node
        self._database = database
        self._pepper = pepper
        self._declarations = Declarations(database)

    async def is_new(self, config: Config) -> bool:
        """Return whether this file's declarations are new. Log a warning if a later file replaced them."""
        digest, known_digests = self._digest(config), await self._declarations.list_digests()
        if digest in known_digests[:-1]:
            reason = "another node has brought in a newer file since; to bring in this one: gateway reload"
            log.warning("declared_superseded", node=self._node.id, reason=reason)
        return digest not in known_digests

    async def record(self, config: Config) -> None:
        await self._declarations.add(self._digest(config))

    @asynccontextmanager
    async def declare_alone(self, config: Config) -> AsyncIterator[None]:
        """Keep other nodes from declaring during the block; afterwards publish that this node has the new file."""
        async with self._node.start_alone():
            yield
            await self.record(config)
            await self._node.put_digest(await asyncio.to_thread(compute_digest, config))
        await self.warn_if_different()

    async def warn_if_different(self) -> None:
        nodes = await list_nodes(self._database)
        live_digests = {node.id: node.config_digest for node in nodes if node.state == "live"}
        differing_nodes = [
            name for name, digest in live_digests.items() if digest != live_digests.get(self._node.id, digest)
        ]
        if differing_nodes:
            reason = f"the configuration of {', '.join(differing_nodes)} differs: gateway nodes"
            log.warning("configuration_differs", node=self._node.id, reason=reason)

    def _digest(self, config: Config) -> str:
        return digest_declared(config.account, config.key, self._pepper)
