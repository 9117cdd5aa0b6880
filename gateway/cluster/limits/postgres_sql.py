"""The tables and functions that decide rate limits in PostgreSQL; ``gateway.domain.limit_server`` describes them.

The tables are unlogged: a crash of the server empties them, like a restart of Valkey. Rows of subjects are created
and locked in the order of their names, so that two commands never deadlock.

The functions' names end with a digest of all functions: while a cluster is upgraded, nodes of two versions use one
database, and neither replaces the functions of the other. The functions of former versions stay.
"""

import hashlib
from collections.abc import Sequence

from gateway.domain.limit_server import ALIVE_S, EPOCH_S

CREATE_TABLES = """
CREATE UNLOGGED TABLE IF NOT EXISTS limit_buckets (
  name text COLLATE "C" PRIMARY KEY,
  requests double precision NOT NULL DEFAULT 0, requests_limit double precision NOT NULL DEFAULT 0,
  tokens double precision NOT NULL DEFAULT 0, tokens_limit double precision NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS limit_running (
  name text COLLATE "C" NOT NULL, node text COLLATE "C" NOT NULL, running integer NOT NULL, PRIMARY KEY (name, node)
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS limit_nodes (
  prefix text COLLATE "C" NOT NULL, node text COLLATE "C" NOT NULL, seen double precision NOT NULL,
  PRIMARY KEY (prefix, node)
) WITH (fillfactor = 50);
CREATE UNLOGGED TABLE IF NOT EXISTS limit_state (one boolean PRIMARY KEY DEFAULT true CHECK (one), token text NOT NULL);
"""

CREATE_CLOCK = """
CREATE FUNCTION read_limit_clock_VERSION() RETURNS double precision LANGUAGE sql VOLATILE AS $$
  SELECT extract(epoch FROM clock_timestamp() - to_timestamp(START_OF_2026))::double precision
$$
""".replace("START_OF_2026", str(EPOCH_S))

_CREATE_FIND_WAIT = """
CREATE FUNCTION find_limit_wait_VERSION(_tat double precision, _limit double precision, _burst double precision,
  _cost double precision, _now double precision) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN _tat <= _now THEN 0
    WHEN _tat - _now - CASE WHEN _cost < _burst THEN (_burst - _cost) * 60 / _limit ELSE 0 END > 1e-6
    THEN _tat - _now - CASE WHEN _cost < _burst THEN (_burst - _cost) * 60 / _limit ELSE 0 END ELSE 0 END
$$
"""

_CREATE_CHANGE_LIMIT = """
CREATE FUNCTION change_limit_VERSION(_tat double precision, _old double precision, _new double precision,
  _now double precision) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN _old = 0 OR _new <= _old THEN _tat ELSE _now + (_tat - _now) * _old / _new END
$$
"""

# The running requests of a silent gateway no longer count.
_CREATE_COUNT_OTHERS = """
CREATE FUNCTION count_others_running_VERSION(_prefix text, _name text, _node text, _now double precision)
RETURNS double precision LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(r.running), 0)::double precision FROM limit_running r
    JOIN limit_nodes n ON n.prefix = _prefix AND n.node = r.node AND n.seen > _now - ALIVE_S
    WHERE r.name = _name AND r.node <> _node
$$
""".replace("ALIVE_S", str(ALIVE_S))

_CREATE_DECIDE = """
CREATE FUNCTION decide_limits_VERSION(_command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  _prefix text := _command ->> 'prefix'; _node text := _command ->> 'node';
  _state text; _known integer; _nodes integer; _now double precision;
  _names text[]; _mine double precision[]; _others double precision[];
  _r double precision[]; _rl double precision[]; _t double precision[]; _tl double precision[];
  _e jsonb; _l jsonb; _i integer; _n integer; _kind integer; _limit double precision; _units double precision;
  _tokens double precision; _passed boolean; _answer jsonb; _answers jsonb := '[]'; _ahead jsonb := '[]';
BEGIN
  SELECT token INTO _state FROM limit_state;
  IF NOT FOUND THEN
    INSERT INTO limit_state (token) VALUES (_command ->> 'token') ON CONFLICT DO NOTHING;
    SELECT token INTO _state FROM limit_state;
  END IF;
  SELECT array_agg(_prefix || ':' || (e ->> 0) ORDER BY o), array_agg((e ->> 1)::double precision ORDER BY o)
    INTO _names, _mine FROM jsonb_array_elements(_command -> 'names') WITH ORDINALITY AS a (e, o);
  IF _names IS NOT NULL THEN
    INSERT INTO limit_buckets (name) SELECT unnest(_names) ON CONFLICT DO NOTHING;
    PERFORM 1 FROM limit_buckets WHERE name = ANY (_names) ORDER BY name FOR UPDATE;
  END IF;
  _now := read_limit_clock_VERSION();
  SELECT count(*) INTO _known FROM limit_nodes WHERE prefix = _prefix AND node = _node AND seen > _now - ALIVE_S;
  IF _command ->> 'replaces' <> '' THEN
    DELETE FROM limit_nodes WHERE prefix = _prefix AND node <> _node AND starts_with(node, _command ->> 'replaces');
  END IF;
  DELETE FROM limit_nodes WHERE prefix = _prefix AND node = _node AND _command ->> 'leaves' = '1';
  IF NOT FOUND THEN
    INSERT INTO limit_nodes AS n VALUES (_prefix, _node, _now) ON CONFLICT (prefix, node) DO UPDATE SET seen = _now;
  END IF;
  SELECT count(*) INTO _nodes FROM limit_nodes WHERE prefix = _prefix AND seen > _now - ALIVE_S;
  IF _names IS NOT NULL THEN
    SELECT array_agg(greatest(b.requests, CASE WHEN b.requests_limit = 0 THEN _now ELSE b.requests END) ORDER BY a.o),
      array_agg(b.requests_limit ORDER BY a.o),
      array_agg(greatest(b.tokens, CASE WHEN b.tokens_limit = 0 THEN _now ELSE b.tokens END) ORDER BY a.o),
      array_agg(b.tokens_limit ORDER BY a.o),
      array_agg(CASE WHEN _mine[a.o] >= 0 THEN count_others_running_VERSION(_prefix, a.name, _node, _now) ELSE 0 END
        ORDER BY a.o)
      INTO _r, _rl, _t, _tl, _others
      FROM unnest(_names) WITH ORDINALITY AS a (name, o) JOIN limit_buckets b ON b.name = a.name;
  END IF;
  FOR _e IN SELECT jsonb_array_elements(_command -> 'fixes') LOOP
    _i := _e -> 0; _units := _e -> 2; _limit := _e -> 3;
    IF (_e ->> 1) = '0' THEN
      _r[_i] := greatest(CASE WHEN _units > 0 THEN greatest(_r[_i], _now) ELSE _r[_i] END
        + _units * 60 / greatest(_limit, _rl[_i]), _now);
    ELSE
      _t[_i] := greatest(CASE WHEN _units > 0 THEN greatest(_t[_i], _now) ELSE _t[_i] END
        + _units * 60 / greatest(_limit, _tl[_i]), _now);
    END IF;
  END LOOP;
  FOR _e IN SELECT jsonb_array_elements(_command -> 'calls') LOOP
    _kind := _e -> 0; _tokens := _e -> 1; _passed := true;
    FOR _n IN SELECT (jsonb_array_elements(_e -> 2))::integer LOOP
      _l := _command -> 'limits' -> (_n - 1); _i := _l -> 0;
      _limit := _l -> 1;
      IF _limit > 0 AND _limit <> _rl[_i] THEN
        _r[_i] := change_limit_VERSION(_r[_i], _rl[_i], _limit, _now); _rl[_i] := _limit;
      END IF;
      IF _kind = 2 AND (_l -> 4)::integer > 0 AND _mine[_i] + _others[_i] >= (_l -> 4)::integer THEN
        _passed := false;
      END IF;
      IF _kind > 0 AND _limit > 0
        AND find_limit_wait_VERSION(_r[_i], _limit, (_l -> 2)::double precision, 1, _now) > 0 THEN
        _passed := false;
      END IF;
      _limit := _l -> 3;
      IF _limit > 0 AND _limit <> _tl[_i] THEN
        _t[_i] := change_limit_VERSION(_t[_i], _tl[_i], _limit, _now); _tl[_i] := _limit;
      END IF;
      IF _kind > 0 AND _limit > 0 AND find_limit_wait_VERSION(_t[_i], _limit, _limit, _tokens, _now) > 0 THEN
        _passed := false;
      END IF;
    END LOOP;
    _answer := jsonb_build_array(_passed::integer);
    FOR _n IN SELECT (jsonb_array_elements(_e -> 2))::integer LOOP
      _l := _command -> 'limits' -> (_n - 1); _i := _l -> 0;
      IF _passed AND _kind > 0 THEN
        _limit := _l -> 1;
        IF _limit > 0 THEN _r[_i] := greatest(_r[_i], _now) + 1 * 60 / _limit; END IF;
        _limit := _l -> 3;
        IF _limit > 0 THEN _t[_i] := greatest(_t[_i], _now) + _tokens * 60 / _limit; END IF;
        IF _kind = 2 AND _mine[_i] >= 0 THEN _mine[_i] := _mine[_i] + 1; END IF;
      END IF;
      _answer := _answer || jsonb_build_array(_r[_i], _t[_i], greatest(_mine[_i] + _others[_i], 0));
    END LOOP;
    _answers := _answers || jsonb_build_array(_answer);
  END LOOP;
  FOR _e IN SELECT jsonb_array_elements(_command -> 'ahead') LOOP
    _i := _e -> 0; _limit := _e -> 3; _units := _e -> 4;
    IF (_e ->> 1) = '0' THEN
      IF _r[_i] - _now - 1e-6 > 0 THEN _units := floor(_units - (_r[_i] - _now - 1e-6) * _limit / 60); END IF;
      _units := greatest(0, least((_e -> 2)::double precision, _units));
      IF _units > 0 THEN _r[_i] := greatest(_r[_i], _now) + _units * 60 / _limit; END IF;
    ELSE
      IF _t[_i] - _now - 1e-6 > 0 THEN _units := floor(_units - (_t[_i] - _now - 1e-6) * _limit / 60); END IF;
      _units := greatest(0, least((_e -> 2)::double precision, _units));
      IF _units > 0 THEN _t[_i] := greatest(_t[_i], _now) + _units * 60 / _limit; END IF;
    END IF;
    _ahead := _ahead || to_jsonb(_units);
  END LOOP;
  UPDATE limit_buckets b SET requests = a.r, requests_limit = a.rl, tokens = a.t, tokens_limit = a.tl
    FROM unnest(_names, _r, _rl, _t, _tl) AS a (name, r, rl, t, tl) WHERE b.name = a.name
      AND (b.requests, b.requests_limit, b.tokens, b.tokens_limit) IS DISTINCT FROM (a.r, a.rl, a.t, a.tl);
  INSERT INTO limit_running AS w SELECT a.name, _node, a.mine::integer FROM unnest(_names, _mine) AS a (name, mine)
    WHERE a.mine >= 0 ON CONFLICT (name, node) DO UPDATE SET running = excluded.running
      WHERE w.running <> excluded.running;
  RETURN jsonb_build_array(_state, _known, _nodes, _now, _answers, _ahead);
END $$
""".replace("ALIVE_S", str(ALIVE_S))

# A bucket is deleted an hour after it has become idle; the requests of a gateway after a day of silence.
_CREATE_SWEEP = """
CREATE FUNCTION sweep_limits_VERSION() RETURNS void LANGUAGE plpgsql AS $$
DECLARE _now double precision := read_limit_clock_VERSION();
BEGIN
  DELETE FROM limit_buckets WHERE name IN (SELECT name FROM limit_buckets
    WHERE greatest(requests, tokens) < _now - 3600 ORDER BY name LIMIT 1000 FOR UPDATE SKIP LOCKED);
  DELETE FROM limit_nodes WHERE seen < _now - 86400;
  DELETE FROM limit_running r WHERE r.running = 0
    OR NOT EXISTS (SELECT FROM limit_nodes n WHERE n.node = r.node);
END $$
"""


def build_functions(clock: str) -> tuple[str, Sequence[str]]:
    """Return the version with which the functions' names end, and the statements that create them."""
    statements = (clock, _CREATE_FIND_WAIT, _CREATE_CHANGE_LIMIT, _CREATE_COUNT_OTHERS, _CREATE_DECIDE, _CREATE_SWEEP)
    version = hashlib.sha256("".join(statements).encode()).hexdigest()[:12]
    return version, [statement.replace("VERSION", version) for statement in statements]
