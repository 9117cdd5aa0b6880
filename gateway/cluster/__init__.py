"""Several gateways on one PostgreSQL database. A single gateway imports nothing from this package.

A **node** is one gateway process with its own id, data folder and journal. Every node serves any request. What nodes
share is in PostgreSQL and, if so configured, on a server of rate limits and in a store of media and bodies. ``open``
makes this process a node before anything else is read from the database. ``services/storage.py`` decides whether there
is a cluster; ``deployment.py`` has the differences between a node and a single gateway.

**What is a lease?** Each key or account with a spending limit, and each subject of a limit, has a balance in the
database. A node may not spend from it directly. It takes a *lease*: an amount that the database counts as spent,
although no request has spent it yet. The node then admits requests from the lease in memory, without a query, by the
same arithmetic as a single gateway. It asks for more before the lease runs out, and returns idle credit. Three numbers
describe a lease:

    granted      the amount set aside for the node
    posted       the part that has become stored charges
    outstanding  the remainder: held by requests, spent but not stored yet, or free

Credit is taken first in the database and then in the node; it is returned first by the node and then in the database.
So the database never counts less than the nodes may spend, whatever fails in between and whatever their clocks say
(``domain/credit.py`` has the argument).

**Who decides?** About money: PostgreSQL, in the functions of ``storage/postgres/credit_sql.py``. If a balance has too
little left, the node asks the others to return their idle credit (a *recall*); only then is a request refused. About
rate limits: the server of ``rate_limits.store``, or each node for its share while the server is away. About work for a
single node, such as deleting old rows: the *leader*, the node that holds a lock in the database. About everything
else: each node for itself.

**What happens when a node dies?** Its beats stop. Ten seconds after its last beat it is behind the *fence*: in case it
is still running but has lost the database, it takes no requests. After 20 seconds by the leader's own clock the leader
declares it dead: its jobs and deliveries are free for other nodes. Its leases stay: their credit is not granted again,
because only the node's journal says how much was spent. If the node starts again, it stores the charges of its journal,
and its leases end. If it does not, the setting ``cluster.orphan_after_s`` says when its leases end, and
``ledger.on_crash`` whether the outstanding credit is released or charged. A node without a disk of its own keeps its
journal in the database; then the leader ends its requests within seconds.

The main modules:

    open.py          makes this process a node; open_limits, open_journal and open_peers open its other parts
    deployment.py    how a node differs from a single gateway (``gateway/deployment.py``)
    changes.py       applies the changes of other nodes: keys, accounts, settings, channels
    lost_changes.py  finds the changes that a replaced store has lost; reapply applies what takes rights away
    sessions.py      applies changes of sessions at other nodes
    declared.py      accounts and keys in the nodes' files, stored by the first node that has them; config_digest
                     tells whether all nodes have the same file
    peers.py         asks other nodes for their local state; own_url finds the address at which they reach this node

    membership/      node: registers and beats         session: its queries and locks in the database
                     fence, death_watch, leadership    notifications: wake waiting code on other nodes
                     store_clock: the shared clock     signature: signs requests between nodes
                     job_events: events of video jobs on other nodes
    credit/          keeper: asks for credit and returns it; queue and recalls are its parts
                     balances: what requests reserve from       authority: the connection to the leases
                     store: leases in the transactions of rows  orphans: leases of nodes that do not come back
    limits/          limiter: rate limits of keys and accounts  channels: rate limits of channels
                     sender, batch: one command for many        fallback: while the server is away
    state/           model lists, failed sign-ins, short-lived values, shared secrets, digests of declared accounts
    journal/         started requests: kept_journal on the node's disk, store_journal in the database
    kept/            the changes of the last minutes, such as jobs and files, stored again after a failover

The folders import nothing above ``observability``. The arithmetic of leases is in ``domain/leased_balance.py``, because
``billing`` reads both kinds of balances.
"""
