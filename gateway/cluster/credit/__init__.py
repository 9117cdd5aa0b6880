"""Credit leases: how much a node may spend without asking, who grants it, and what happens when a node dies.

One request:  billing.quota admits it -> balances.LeasedBalances.reserve_now reserves from the lease, in memory
Too little:   -> reserve -> keeper.CreditKeeper.wait puts the request into queue.CreditQueue. After ``credit_wait_s``
              (8 seconds) without an answer from the database: 503
              -> the keeper's next step asks for all waiting requests: authority -> ``take_credit`` in PostgreSQL
              granted: the lease grows, and the queue makes the reservation
              not enough, and other nodes hold some: recalls.Recalls asks these nodes to return idle credit, then the
              step is repeated
              not enough anywhere: the request is refused. For 0.25 to 5 seconds, requests for as much or more are
              refused without asking; a request that outlasts this time asks again
Longer:       an answer without a token limit increases its reservation -> extend. Where nothing is left, one request
              per balance in the whole cluster gets an overdraft, the right to exceed the limit; the excess is recorded
End:          billing.settlement -> the lease in memory; storage.ledger posts the charge -> store, in the same commit:
              granted credit becomes posted
Dead node:    node_credit ends the leases at the next start of that node; orphans ends the leases of a node that
              does not come back
"""
