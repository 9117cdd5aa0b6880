"""The tables and functions of credit leases in PostgreSQL: how much of each spending limit every node may spend.

``owner`` is 0 for an account, 1 for an API key and 2 for a subject of a limit; ``period`` is 0 for lifetime, 1 for
daily, 2 for monthly; ``start`` is 0, the number of a day (since 1970), or that of a month's first day. Amounts are
nano-USD. A balance exists for every account and key with a limit. Its leases outlive the limit, until their owner is
removed: a node that sees no request between two changes of a limit continues to spend its lease under the second one.
Besides the invariants of a node in ``gateway.domain.credit``, any snapshot satisfies:

- ``settled + leased + reserved <= limit + credit``, except for overruns; an overrun lease counts as its ``posted``;
- ``leased`` is the sum of ``granted`` over the balance's leases;
- ``settled`` and the sum of ``posted`` are the window's charges;
- ``reserved`` is the sum of the reservations of its open jobs.

A subject of a limit has a balance while nodes have leases or jobs have reservations of it. The balance lacks the
window, limit and spending: a node sends window and limit when it asks for credit, and ``limit_counters`` has the
spending under ``counter`` and ``subject``. ``settled`` and ``credit`` mean nothing. The sum of every window that a node
may spend in, ``reserved`` and the outstanding parts of all leases together stay within the limit, except for overruns.

Locks are always taken in the order of owner and id, each balance before its leases. The functions expect their arrays
in this order.
"""

from collections.abc import Mapping

from gateway.domain.request_budget import SESSION_BUDGET

CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS credit_balances (
  owner smallint NOT NULL, owner_id bigint NOT NULL, period smallint NOT NULL, start integer NOT NULL,
  credit bigint NOT NULL DEFAULT 0, settled bigint NOT NULL DEFAULT 0,
  leased bigint NOT NULL DEFAULT 0, reserved bigint NOT NULL DEFAULT 0, counter text, subject text,
  PRIMARY KEY (owner, owner_id), CHECK (settled >= 0 AND reserved >= 0)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS credit_leases (
  owner smallint NOT NULL, owner_id bigint NOT NULL, node text COLLATE "C" NOT NULL, start integer NOT NULL,
  granted bigint NOT NULL, posted bigint NOT NULL DEFAULT 0, late bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (node, owner, owner_id), CHECK (posted >= 0 AND late >= 0)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS credit_leases_owner ON credit_leases (owner, owner_id);
"""

_CREDIT_LIMIT = """
CREATE OR REPLACE FUNCTION credit_limit(_owner smallint, _id bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT CASE _owner WHEN 1 THEN (SELECT quota_nanos FROM keys WHERE id = _id)
                     ELSE (SELECT quota_nanos FROM accounts WHERE id = _id) END
$$
"""

_CREDIT_START = """
CREATE OR REPLACE FUNCTION credit_start(_period smallint, _day integer, _month integer) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE _period WHEN 0 THEN 0 WHEN 1 THEN _day ELSE _month END
$$
"""

# Each kind of owner has its own statement: only then is the index of its column used.
_CREDITED_SINCE = """
CREATE OR REPLACE FUNCTION credited_since(_owner smallint, _id bigint, _start bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
  SELECT coalesce(CASE _owner WHEN 1 THEN
    (SELECT sum(amount_nanos) FROM entries WHERE kind <> 'charge' AND at_ms >= _start * 86400000
      AND account_id = (SELECT account_id FROM keys WHERE id = _id) AND key_id = _id)
  ELSE
    (SELECT sum(amount_nanos) FROM entries WHERE kind <> 'charge' AND at_ms >= _start * 86400000
      AND account_id = _id AND key_id IS NULL)
  END, 0)::bigint
$$
"""

_CHARGED_SINCE = """
CREATE OR REPLACE FUNCTION charged_since(_owner smallint, _id bigint, _start bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
  SELECT coalesce(CASE _owner WHEN 1 THEN
    (SELECT sum(cost_nanos) FROM usage_days WHERE day >= _start AND key_id = _id)
  ELSE
    (SELECT sum(cost_nanos) FROM usage_days WHERE day >= _start AND account_id = _id)
  END, 0)::bigint
$$
"""

# The nodes' outstanding credit moves into a new window; a node whose day is late counts in the new one. Spending beyond
# a node's lease is not a charge of the new window, but is granted to the node there: otherwise the node would lack it.
_TURN_BALANCE = """
CREATE OR REPLACE FUNCTION turn_balance(_owner smallint, _id bigint, _day integer, _month integer)
RETURNS credit_balances LANGUAGE plpgsql AS $$
DECLARE b credit_balances; s integer;
BEGIN
  SELECT * INTO b FROM credit_balances WHERE owner = _owner AND owner_id = _id FOR UPDATE;
  IF NOT FOUND THEN RETURN NULL; END IF;
  s := credit_start(b.period, _day, _month);
  IF s > b.start THEN
    UPDATE credit_leases SET granted = greatest(granted - posted - late, 0), posted = 0,
        late = greatest(posted + late - granted, 0), start = s
      WHERE owner = _owner AND owner_id = _id;
    UPDATE credit_balances SET start = s, settled = 0, credit = credited_since(_owner, _id, s),
      leased = coalesce((SELECT sum(l.granted) FROM credit_leases l WHERE l.owner = _owner AND l.owner_id = _id), 0)
      WHERE owner = _owner AND owner_id = _id RETURNING * INTO b;
  END IF;
  RETURN b;
END $$
"""

# The caller holds LIMITS_LOCK, so that no rows are posted meanwhile: usage_days has all charges. A row of the next day
# means that it has begun: the caller's clock may be a little late.
_OPEN_BALANCE = """
CREATE OR REPLACE FUNCTION open_balance(_owner smallint, _id bigint, _period smallint, _day integer, _month integer)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE s integer;
BEGIN
  PERFORM 1 FROM credit_balances WHERE owner = _owner AND owner_id = _id FOR UPDATE;
  IF _owner = 1 AND EXISTS (SELECT 1 FROM usage_days WHERE day = _day + 1 AND key_id = _id)
      OR _owner = 0 AND EXISTS (SELECT 1 FROM usage_days WHERE day = _day + 1 AND account_id = _id) THEN
    _day := _day + 1;
    _month := date_trunc('month', date '1970-01-01' + _day)::date - date '1970-01-01';
  END IF;
  s := credit_start(_period, _day, _month);
  IF _period IS NULL THEN  -- the leases stay: nodes may not hear of it before there is a limit again
    DELETE FROM credit_balances WHERE owner = _owner AND owner_id = _id;
    RETURN;
  END IF;
  UPDATE credit_leases SET granted = greatest(granted - posted - late, 0), posted = 0,
      late = greatest(posted + late - granted, 0), start = s
    WHERE owner = _owner AND owner_id = _id;
  INSERT INTO credit_balances AS b (owner, owner_id, period, start, credit, settled, leased, reserved)
    VALUES (_owner, _id, _period, s, credited_since(_owner, _id, s), charged_since(_owner, _id, s),
      coalesce((SELECT sum(l.granted) FROM credit_leases l WHERE l.owner = _owner AND l.owner_id = _id), 0),
      held_by_jobs(_owner, _id))
    ON CONFLICT (owner, owner_id) DO UPDATE SET period = excluded.period, start = excluded.start,
      credit = excluded.credit, settled = excluded.settled, leased = excluded.leased, reserved = excluded.reserved;
END $$
"""

_HELD_BY_JOBS = """
CREATE OR REPLACE FUNCTION held_by_jobs(_owner smallint, _id bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(held_nanos), 0)::bigint FROM videos
  WHERE state NOT IN ('completed', 'failed') AND CASE _owner WHEN 1 THEN key_id = _id ELSE account_id = _id END
$$
"""

# Waiting requests come first; credit beyond them is limited to half of the remainder divided among the live nodes.
# ``since`` is the start of the window.
_TAKE_CREDIT = """
CREATE OR REPLACE FUNCTION take_credit(_node text, _live integer, _day integer, _month integer,
  _owner smallint[], _id bigint[], _least bigint[], _need bigint[], _want bigint[])
RETURNS TABLE (o smallint, i bigint, limited boolean, g bigint, room bigint, others bigint, since integer,
  outstanding bigint, holders integer)
LANGUAGE plpgsql AS $$
DECLARE k integer; b credit_balances; mended bigint; overrun bigint;
BEGIN
  FOR k IN 1 .. coalesce(array_length(_id, 1), 0) LOOP
    o := _owner[k]; i := _id[k]; g := 0; room := NULL; others := 0; mended := 0; outstanding := 0; holders := 0;
    b := turn_balance(o, i, _day, _month);
    limited := b.owner_id IS NOT NULL;
    since := coalesce(b.start, 0);
    IF NOT limited THEN RETURN NEXT; CONTINUE; END IF;
    -- What this node has spent beyond its lease is granted, whatever is left; what it spent in another window goes.
    SELECT greatest(0, l.posted + l.late - l.granted) INTO mended FROM credit_leases l
      WHERE l.owner = o AND l.owner_id = i AND l.node = _node AND (l.late > 0 OR l.posted > l.granted);
    IF FOUND THEN
      UPDATE credit_leases l SET granted = greatest(l.granted - l.late, l.posted), late = 0
        WHERE l.owner = o AND l.owner_id = i AND l.node = _node;
      UPDATE credit_balances x SET leased =
          (SELECT sum(l.granted) FROM credit_leases l WHERE l.owner = o AND l.owner_id = i)
        WHERE x.owner = o AND x.owner_id = i RETURNING * INTO b;
    END IF;
    SELECT coalesce(sum(l.granted - l.posted - l.late) FILTER (WHERE l.node = _node), 0),
        coalesce(sum(greatest(l.granted - l.posted - l.late, 0)) FILTER (WHERE l.node <> _node), 0),
        coalesce(sum(greatest(l.posted - l.granted, 0)), 0)
      INTO outstanding, others, overrun FROM credit_leases l WHERE l.owner = o AND l.owner_id = i;
    room := credit_limit(o, i) + b.credit - b.settled - b.leased - b.reserved - overrun;
    IF _need[k] > 0 AND room >= _least[k] THEN
      g := least(room, greatest(_need[k], least(_want[k], room / (2 * _live))));
      UPDATE credit_balances x SET leased = x.leased + g WHERE x.owner = o AND x.owner_id = i;
      INSERT INTO credit_leases AS l (owner, owner_id, node, start, granted) VALUES (o, i, _node, b.start, g)
        ON CONFLICT (node, owner, owner_id) DO UPDATE SET granted = l.granted + excluded.granted;
      room := room - g; outstanding := outstanding + g; others := 0;
    ELSE
      SELECT count(*) INTO holders FROM credit_leases l LEFT JOIN nodes n ON n.id = l.node
        WHERE l.owner = o AND l.owner_id = i AND l.node <> _node AND l.granted > l.posted + l.late
        AND coalesce(n.state, 'live') = 'live';
    END IF;
    g := g + coalesce(mended, 0);
    RETURN NEXT;
  END LOOP;
END $$
"""

# A row of ``limit_counters`` is written in the commit that posts its cost to a lease: one statement reads both. Windows
# after that of a node whose clock is late count, too. Each window has one row, and each slice of a rolling one. The
# budget of a session is the stored one, for a node may not know a change yet.
_TAKE_LIMIT_CREDIT = """
CREATE OR REPLACE FUNCTION take_limit_credit(_node text, _live integer, _id bigint[], _least bigint[], _need bigint[],
  _want bigint[], _counter text[], _subject text[], _cap bigint[], _since bigint[], _rolling boolean[])
RETURNS TABLE (i bigint, g bigint, room bigint, others bigint, outstanding bigint, holders integer, first bigint,
  cap bigint)
LANGUAGE plpgsql AS $$
DECLARE k integer; b credit_balances; mended bigint; spent bigint;
BEGIN
  FOR k IN 1 .. coalesce(array_length(_id, 1), 0) LOOP
    i := _id[k]; g := 0; mended := 0; holders := 0;
    SELECT * INTO b FROM credit_balances x WHERE x.owner = 2 AND x.owner_id = i FOR UPDATE;
    IF NOT FOUND THEN
      INSERT INTO credit_balances AS x (owner, owner_id, period, start) VALUES (2, i, 0, 0)
        ON CONFLICT (owner, owner_id) DO UPDATE SET start = 0 RETURNING * INTO b;
    END IF;
    SELECT greatest(0, l.posted + l.late - l.granted) INTO mended FROM credit_leases l
      WHERE l.owner = 2 AND l.owner_id = i AND l.node = _node AND (l.late > 0 OR l.posted > l.granted);
    IF FOUND THEN
      UPDATE credit_leases l SET granted = greatest(l.granted - l.late, l.posted), late = 0
        WHERE l.owner = 2 AND l.owner_id = i AND l.node = _node;
    END IF;
    SELECT s.nanos, s.first, l.own, l.others INTO spent, first, outstanding, others
      FROM (SELECT coalesce(CASE WHEN _rolling[k] THEN sum(c.spent_nanos) ELSE max(c.spent_nanos) END, 0)::bigint nanos,
          coalesce(min(c.start_s) FILTER (WHERE c.spent_nanos > 0), 0) AS first
        FROM limit_counters c
        WHERE c.counter = _counter[k] AND c.subject = _subject[k] AND c.start_s >= _since[k]) s,
      (SELECT coalesce(sum(e.granted - e.posted - e.late) FILTER (WHERE e.node = _node), 0)::bigint AS own,
          coalesce(sum(greatest(e.granted - e.posted - e.late, 0)) FILTER (WHERE e.node <> _node), 0)::bigint AS others
        FROM credit_leases e WHERE e.owner = 2 AND e.owner_id = i) l;
    SELECT s.limit_nanos INTO cap FROM session_states s
      WHERE _counter[k] = 'SESSION_COUNTER' AND s.subject = _subject[k];
    cap := coalesce(cap, _cap[k]);
    room := cap - spent - b.reserved - greatest(outstanding, 0) - others;
    IF _need[k] > 0 AND room >= _least[k] THEN
      g := least(room, greatest(_need[k], least(_want[k], room / (2 * _live))));
      INSERT INTO credit_leases AS l (owner, owner_id, node, start, granted) VALUES (2, i, _node, 0, g)
        ON CONFLICT (node, owner, owner_id) DO UPDATE SET granted = l.granted + excluded.granted;
      room := room - g; outstanding := outstanding + g; others := 0;
    ELSE
      SELECT count(*) INTO holders FROM credit_leases l LEFT JOIN nodes n ON n.id = l.node
        WHERE l.owner = 2 AND l.owner_id = i AND l.node <> _node AND l.granted > l.posted + l.late
        AND coalesce(n.state, 'live') = 'live';
    END IF;
    UPDATE credit_balances x SET counter = _counter[k], subject = _subject[k], leased = coalesce(
        (SELECT sum(l.granted) FROM credit_leases l WHERE l.owner = 2 AND l.owner_id = i), 0)
      WHERE x.owner = 2 AND x.owner_id = i;
    -- A refused subject without leases leaves nothing, even if the node ends before it gives the balance up.
    DELETE FROM credit_balances x WHERE x.owner = 2 AND x.owner_id = i AND x.reserved = 0
      AND NOT EXISTS (SELECT 1 FROM credit_leases l WHERE l.owner = 2 AND l.owner_id = i);
    g := g + coalesce(mended, 0);
    RETURN NEXT;
  END LOOP;
END $$
""".replace("SESSION_COUNTER", SESSION_BUDGET.counter)

# A lease of a limit's subject ends when nothing of it is outstanding, and the balance with the last lease. A balance of
# which a node was only refused credit has no lease.
_GIVE_CREDIT = """
CREATE OR REPLACE FUNCTION give_credit(_node text, _owner smallint[], _id bigint[], _amount bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE k integer;
BEGIN
  FOR k IN 1 .. coalesce(array_length(_id, 1), 0) LOOP
    PERFORM 1 FROM credit_balances WHERE owner = _owner[k] AND owner_id = _id[k] FOR UPDATE;
    UPDATE credit_leases SET granted = granted - _amount[k]
      WHERE owner = _owner[k] AND owner_id = _id[k] AND node = _node;
    CONTINUE WHEN NOT FOUND AND _owner[k] <> 2;  -- the owner was removed, and the lease with it
    UPDATE credit_balances SET leased = leased - _amount[k] WHERE owner = _owner[k] AND owner_id = _id[k];
    CONTINUE WHEN _owner[k] <> 2;
    DELETE FROM credit_leases WHERE owner = 2 AND owner_id = _id[k] AND node = _node AND granted = posted + late;
    DELETE FROM credit_balances b WHERE b.owner = 2 AND b.owner_id = _id[k] AND b.reserved = 0
      AND NOT EXISTS (SELECT 1 FROM credit_leases l WHERE l.owner = 2 AND l.owner_id = _id[k]);
    UPDATE credit_balances b SET leased = coalesce(
        (SELECT sum(l.granted) FROM credit_leases l WHERE l.owner = 2 AND l.owner_id = _id[k]), 0)
      WHERE b.owner = 2 AND b.owner_id = _id[k];
  END LOOP;
END $$
"""

# The last statement of a transaction that posts rows of one day, or of several days, newest first. It locks only this
# node's own leases, except for balances that are not in the day's window yet, or of which the node has no lease.
# Without a limit there is no window, and it does not matter whether a charge is in the lease's ``posted`` or ``late``.
_POST_SPENDING = """
CREATE OR REPLACE FUNCTION post_spending(_node text, _day integer, _month integer,
  _owner smallint[], _id bigint[], _amount bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE k integer;
BEGIN
  FOR k IN 1 .. coalesce(array_length(_id, 1), 0) LOOP
    PERFORM turn_balance(b.owner, b.owner_id, _day, _month) FROM credit_balances b
      WHERE b.owner = _owner[k] AND b.owner_id = _id[k]
      AND (credit_start(b.period, _day, _month) > b.start OR NOT EXISTS (
        SELECT 1 FROM credit_leases e WHERE e.owner = b.owner AND e.owner_id = b.owner_id AND e.node = _node));
    PERFORM 1 FROM credit_leases l WHERE l.owner = _owner[k] AND l.owner_id = _id[k] AND l.node = _node FOR UPDATE;
  END LOOP;
  UPDATE credit_leases l SET posted = l.posted + CASE WHEN x.s >= l.start THEN x.a ELSE 0 END,
      late = l.late + CASE WHEN x.s < l.start THEN x.a ELSE 0 END
    FROM (SELECT u.o, u.i, sum(u.a) a, credit_start(b.period, _day, _month) s
          FROM unnest(_owner, _id, _amount) u(o, i, a)
          LEFT JOIN credit_balances b ON b.owner = u.o AND b.owner_id = u.i GROUP BY u.o, u.i, b.period) x
    WHERE l.owner = x.o AND l.owner_id = x.i AND l.node = _node;
  INSERT INTO credit_leases AS l (owner, owner_id, node, start, granted, posted)
    SELECT b.owner, b.owner_id, _node, b.start, 0, sum(u.a)
    FROM unnest(_owner, _id, _amount) u(o, i, a)
    JOIN credit_balances b ON b.owner = u.o AND b.owner_id = u.i
    WHERE credit_start(b.period, _day, _month) = b.start AND NOT EXISTS
      (SELECT 1 FROM credit_leases e WHERE e.owner = b.owner AND e.owner_id = b.owner_id AND e.node = _node)
    GROUP BY 1, 2, 4 ORDER BY 1, 2;
END $$
"""

# Release every lease of a node, except those of the named balances.
_FOLD_OTHER_LEASES = """
CREATE OR REPLACE FUNCTION fold_other_leases(_node text, _owner smallint[], _id bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE r credit_leases;
BEGIN
  FOR r IN SELECT * FROM credit_leases l WHERE l.node = _node AND NOT EXISTS (
      SELECT 1 FROM unnest(_owner, _id) AS kept(o, i) WHERE kept.o = l.owner AND kept.i = l.owner_id)
      ORDER BY owner, owner_id LOOP
    PERFORM 1 FROM credit_balances WHERE owner = r.owner AND owner_id = r.owner_id FOR UPDATE;
    DELETE FROM credit_leases WHERE owner = r.owner AND owner_id = r.owner_id AND node = _node RETURNING * INTO r;
    UPDATE credit_balances SET leased = leased - r.granted, settled = settled + r.posted
      WHERE owner = r.owner AND owner_id = r.owner_id;
    DELETE FROM credit_balances b WHERE r.owner = 2 AND b.owner = 2 AND b.owner_id = r.owner_id AND b.reserved = 0
      AND NOT EXISTS (SELECT 1 FROM credit_leases l WHERE l.owner = 2 AND l.owner_id = r.owner_id);
  END LOOP;
END $$
"""

_FOLD_LEASES = """
CREATE OR REPLACE FUNCTION fold_leases(_node text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fold_other_leases(_node, '{}', '{}');
END $$
"""

# The reservation of a job moves from its node's lease to the job, which any node may end.
_RESERVE_JOB = """
CREATE OR REPLACE FUNCTION reserve_job(_node text, _owner smallint[], _id bigint[], _held bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE k integer;
BEGIN
  FOR k IN 1 .. coalesce(array_length(_id, 1), 0) LOOP
    IF _owner[k] = 2 THEN
      INSERT INTO credit_balances (owner, owner_id, period, start) VALUES (2, _id[k], 0, 0) ON CONFLICT DO NOTHING;
    END IF;
    UPDATE credit_balances SET reserved = reserved + _held WHERE owner = _owner[k] AND owner_id = _id[k];
    UPDATE credit_leases SET granted = granted - _held
      WHERE owner = _owner[k] AND owner_id = _id[k] AND node = _node;
    CONTINUE WHEN NOT FOUND;  -- the limit is newer than the node's request
    UPDATE credit_balances SET leased = leased - _held WHERE owner = _owner[k] AND owner_id = _id[k];
  END LOOP;
END $$
"""

_FINISH_JOB = """
CREATE OR REPLACE FUNCTION finish_job(_day integer, _month integer,
  _owner smallint[], _id bigint[], _held bigint, _cost bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE k integer;
BEGIN
  FOR k IN 1 .. coalesce(array_length(_id, 1), 0) LOOP
    PERFORM turn_balance(_owner[k], _id[k], _day, _month);
    UPDATE credit_balances SET
        reserved = CASE owner WHEN 2 THEN greatest(reserved - _held, 0) ELSE reserved - _held END,
        settled = settled + CASE WHEN credit_start(period, _day, _month) = start THEN _cost ELSE 0 END
      WHERE owner = _owner[k] AND owner_id = _id[k];
    DELETE FROM credit_balances b WHERE _owner[k] = 2 AND b.owner = 2 AND b.owner_id = _id[k] AND b.reserved = 0
      AND NOT EXISTS (SELECT 1 FROM credit_leases l WHERE l.owner = 2 AND l.owner_id = _id[k]);
  END LOOP;
END $$
"""

_ADD_CREDIT = """
CREATE OR REPLACE FUNCTION add_credit(_owner smallint, _id bigint, _day integer, _month integer, _amount bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM turn_balance(_owner, _id, _day, _month);
  UPDATE credit_balances SET credit = credit + _amount WHERE owner = _owner AND owner_id = _id;
END $$
"""

FUNCTIONS: Mapping[str, str] = {
    "credit_limit": _CREDIT_LIMIT,
    "credit_start": _CREDIT_START,
    "credited_since": _CREDITED_SINCE,
    "charged_since": _CHARGED_SINCE,
    "held_by_jobs": _HELD_BY_JOBS,
    "turn_balance": _TURN_BALANCE,
    "open_balance": _OPEN_BALANCE,
    "take_credit": _TAKE_CREDIT,
    "take_limit_credit": _TAKE_LIMIT_CREDIT,
    "give_credit": _GIVE_CREDIT,
    "post_spending": _POST_SPENDING,
    "fold_other_leases": _FOLD_OTHER_LEASES,
    "fold_leases": _FOLD_LEASES,
    "reserve_job": _RESERVE_JOB,
    "finish_job": _FINISH_JOB,
    "add_credit": _ADD_CREDIT,
}
"""Every function by name, in the order of creation."""
