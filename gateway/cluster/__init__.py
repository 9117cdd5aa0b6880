"""Several gateways on one PostgreSQL database. A gateway that is alone imports nothing of this package.

A **node** is one gateway process with an id, a data folder and a journal of its own. Every node takes any request, and
none of them asks another one to serve it: PostgreSQL is the only thing that they share. ``open`` makes this process a
node, before anything else is read from the database. ``services/storage.py`` decides whether there is a cluster; what
a node then does otherwise than a gateway that is alone is in ``deployment.py``.

**What is a lease?** Each key or account with a spending limit has a balance in the database. A node may not spend of it
directly. It takes a *lease*: an amount that the database counts as spent at once, although no request has spent it yet.
The node then admits requests from the lease in memory, without asking, by the same arithmetic as a gateway that is
alone. It asks for more before the lease runs out, and gives back what is idle. Three numbers describe a lease:

    granted      what was set aside for the node
    posted       what of it has become stored charges
    outstanding  the rest: held by requests, spent but not stored yet, or free

Credit is taken in the database first and then in the node; it is given back by the node first and then in the database.
So the database never counts less than what the nodes may spend, whatever fails in between and whatever their clocks say
(``domain/credit.py`` has the argument).

**Who decides?** About money: PostgreSQL, in the functions of ``storage/postgres/credit_sql.py``. If a balance has too
little left, the node asks the others to return what they do not use (a *recall*); only then is a request refused.
About rate limits: the server of the setting ``limits.store``, or each node by its part while the server is away. About
what only one node should do, such as deleting old rows: the *leader*, the node that holds a lock in the database. About
everything else: each node for itself.

**What happens when a node dies?** Its beats stop. Behind the *fence*, 10 seconds after its last one, the node takes no
request, in case it lives but has lost the database. After 20 seconds by the leader's own clock the leader declares it
dead: its jobs and deliveries are free for others. Its leases stay: nothing of them is granted again, because only the
node's journal says what was spent. If the node starts again, it stores what its journal has, and its leases end. If it
does not, the setting ``cluster.orphan_after_s`` says when its leases are settled, and ``ledger.on_crash`` whether what
is outstanding is released or charged. A node without a disk of its own keeps its journal in the database; then the
leader ends its requests at once.

Which module does what:

    open.py          makes this process a node; open_limits, open_journal, open_peers open what a node has besides
    deployment.py    what a node does otherwise than a gateway that is alone (``gateway/deployment.py``)
    changes.py       brings into force what other nodes have changed: keys, accounts, settings, channels
    declared.py      accounts and keys of the nodes' files: brought in by the first node that has them; config_digest
                     tells whether all nodes have the same file
    peers.py         asks other nodes for what each knows only of itself; own_url finds where they reach this one

    membership/      node: registers and beats         session: what it asks of the database
                     fence, death_watch, leadership    notifications: wake what waits at other nodes
                     store_clock: the clock they share signature: signs what a node asks another
                     job_events: events of video jobs at other nodes
    credit/          keeper: asks for credit, gives it back; queue and recalls are its parts
                     balances: what requests reserve from       authority: the connection to the leases
                     store: leases in the transactions of rows  orphans: leases of nodes that do not come back
    limits/          limiter: rate limits of keys and accounts  channels: those of channels
                     sender, batch: one command for many        fallback: while the server is away
    state/           model lists, failed sign-ins, short-lived values, the secrets that all nodes have
    journal/         what a node has begun: kept_journal on its disk, store_journal in the database

The folders import nothing above ``observability``. What a lease is to the arithmetic is in
``domain/leased_balance.py``, for ``billing`` reads both kinds of balances.
"""
