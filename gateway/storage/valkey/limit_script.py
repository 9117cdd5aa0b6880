"""The Lua script that decides rate limits in Valkey and Redis; ``gateway.domain.limit_server`` describes it.

A subject's buckets are a hash: ``r`` and ``t`` are the ``tat`` of requests and tokens, ``rl`` and ``tl`` the limits
under which they are owed. Its running requests are another hash, by gateway. Both expire. Numbers are stored and sent
with 17 digits, so that none is rounded.
"""

from gateway.domain.limit_server import ALIVE_S, EPOCH_S

CLOCK = f"""
local function read_clock()
  local t = redis.call('TIME')
  return (tonumber(t[1]) - {EPOCH_S}) + tonumber(t[2]) / 1000000
end
"""

_ARITHMETIC = """
local c = cjson.decode(ARGV[1])
local now = read_clock()
local function text(number) return string.format('%.17g', number) end
local function find_wait(tat, limit, burst, cost)
  if tat <= now then return 0 end
  local headroom = 0
  if cost < burst then headroom = (burst - cost) * 60 / limit end
  local wait = tat - now - headroom
  if wait > 1e-6 then return wait end
  return 0
end
local function add(tat, units, limit) return math.max(tat, now) + units * 60 / limit end
local function change(tat, old, new)
  if old == 0 or new <= old then return tat end
  return now + (tat - now) * old / new
end
"""

# The running requests of a silent gateway no longer count; they are searched only if a limit would refuse.
_STATE = f"""
local state = redis.call('GET', KEYS[1])
if not state then
  state = c.token
  redis.call('SET', KEYS[1], state)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now - {ALIVE_S}))
if c.replaces and c.replaces ~= '' then
  for _, node in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    if node ~= c.node and string.sub(node, 1, #c.replaces) == c.replaces then redis.call('ZREM', KEYS[2], node) end
  end
end
local known = redis.call('ZSCORE', KEYS[2], c.node) and 1 or 0
if c.leaves == 1 then redis.call('ZREM', KEYS[2], c.node) else redis.call('ZADD', KEYS[2], text(now), c.node) end
local nodes = redis.call('ZCARD', KEYS[2])
local subjects = {{}}
for i, entry in ipairs(c.names) do
  local s = redis.call('HMGET', KEYS[2 * i + 1], 'r', 'rl', 't', 'tl')
  subjects[i] = {{
    r = tonumber(s[1] or now), rl = tonumber(s[2] or 0), t = tonumber(s[3] or now), tl = tonumber(s[4] or 0),
    mine = entry[2], places = KEYS[2 * i + 2], owes = false,
  }}
end
local function count_others(s, alive_only)
  local sum, running = 0, redis.call('HGETALL', s.places)
  for k = 1, #running, 2 do
    if running[k] ~= c.node then
      if alive_only and not redis.call('ZSCORE', KEYS[2], running[k]) then
        redis.call('HDEL', s.places, running[k])
      else
        sum = sum + tonumber(running[k + 1])
      end
    end
  end
  return sum
end
local function count_running(s, most)
  if s.mine < 0 then return 0 end
  if not s.others then s.others = count_others(s, false) end
  if s.mine + s.others >= most and not s.checked then
    s.others, s.checked = count_others(s, true), true
  end
  return s.mine + s.others
end
"""

_DECISIONS = """
for _, fix in ipairs(c.fixes) do
  local s, what, units, limit = subjects[fix[1]], fix[2] == 0 and 'r' or 't', fix[3], fix[4]
  local since = s[what]
  if units > 0 and since < now then since = now end
  s[what] = math.max(since + units * 60 / math.max(limit, s[what .. 'l']), now)
  s.owes = true
end
local function use(l)
  local s = subjects[l[1]]
  if l[2] > 0 and l[2] ~= s.rl then s.r, s.rl, s.owes = change(s.r, s.rl, l[2]), l[2], true end
  if l[4] > 0 and l[4] ~= s.tl then s.t, s.tl, s.owes = change(s.t, s.tl, l[4]), l[4], true end
end
local function passes(kind, tokens, limits)
  for _, n in ipairs(limits) do
    local l = c.limits[n]
    local s = subjects[l[1]]
    if kind == 2 and l[5] > 0 and count_running(s, l[5]) >= l[5] then return false end
    if l[2] > 0 and find_wait(s.r, l[2], l[3], 1) > 0 then return false end
    if l[4] > 0 and find_wait(s.t, l[4], l[4], tokens) > 0 then return false end
  end
  return true
end
local answers = {}
for k, call in ipairs(c.calls) do
  local kind, tokens, limits = call[1], call[2], call[3]
  for _, n in ipairs(limits) do use(c.limits[n]) end
  local passed = kind == 0 or passes(kind, tokens, limits)
  local answer = { passed and '1' or '0' }
  for _, n in ipairs(limits) do
    local l = c.limits[n]
    local s = subjects[l[1]]
    if passed and kind > 0 then
      if l[2] > 0 then s.r, s.owes = add(s.r, 1, l[2]), true end
      if l[4] > 0 then s.t, s.owes = add(s.t, tokens, l[4]), true end
      if kind == 2 and s.mine >= 0 then s.mine = s.mine + 1 end
    end
    answer[#answer + 1] = text(s.r)
    answer[#answer + 1] = text(s.t)
    answer[#answer + 1] = text(l[5] > 0 and count_running(s, l[5]) or 0)
  end
  answers[k] = '[' .. table.concat(answer, ',') .. ']'
end
local ahead = {}
for k, wish in ipairs(c.ahead) do
  local s, what, limit, burst = subjects[wish[1]], wish[2] == 0 and 'r' or 't', wish[4], wish[5]
  local debt, left = s[what] - now - 1e-6, burst
  if debt > 0 then left = math.floor(burst - debt * limit / 60) end
  local units = math.max(0, math.min(wish[3], left))
  if units > 0 then s[what], s.owes = add(s[what], units, limit), true end
  ahead[k] = text(units)
end
"""

_END = """
for i, s in ipairs(subjects) do
  local key = KEYS[2 * i + 1]
  if s.owes then
    redis.call('HSET', key, 'r', text(s.r), 'rl', text(s.rl), 't', text(s.t), 'tl', text(s.tl))
    redis.call('PEXPIRE', key, string.format('%.0f', (math.max(s.r, s.t, now) - now + 3600) * 1000))
  end
  if s.mine == 0 then
    redis.call('HDEL', s.places, c.node)
  elseif s.mine > 0 then
    redis.call('HSET', s.places, c.node, text(s.mine))
    redis.call('PEXPIRE', s.places, 86400000)
  end
end
return '["' .. state .. '",' .. known .. ',' .. nodes .. ',' .. text(now) .. ',[' .. table.concat(answers, ',')
  .. '],[' .. table.concat(ahead, ',') .. ']]'
"""

RULES = _ARITHMETIC + _STATE + _DECISIONS + _END
"""The script without its clock."""

SCRIPT = CLOCK + RULES
