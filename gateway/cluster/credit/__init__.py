"""Credit leases: what a node may spend without asking, who grants it, and what becomes of it when a node dies.

One request:  billing.quota admits it -> balances.LeasedBalances.hold_now reserves from the lease, in memory
Too little:   -> hold -> keeper.CreditKeeper.wait puts the request into queue.CreditQueue, for 8 seconds at most
              -> the keeper's next step asks for all that wait: authority -> the function ``take_credit`` in PostgreSQL
              granted: the lease grows, and the queue makes the reservation
              not enough, and other nodes hold some: recalls.Recalls asks these nodes to return what is idle, then the
              step is repeated
              not enough anywhere: the request is refused, and the refusal holds for a moment for others like it
Longer:       an answer without a limit of tokens grows its reservation -> extend. Where nothing is left, one request
              of a balance in the whole cluster gets the right to exceed the limit (claim), and the excess is recorded
End:          billing.settlement -> the lease in memory; storage.ledger posts the charge -> store, in the same commit:
              what was granted becomes posted
Dead node:    node_credit takes the leases back at the next start of that node; orphans settles those of a node that
              does not come back
"""
