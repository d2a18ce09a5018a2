-- This edge among those that share a Redis: its name there, how many there are, and what they must tell a
-- Redis that has begun anew.

local lease_scripts = require "edge.lease_scripts"
local lease_table = require "edge.lease_table"
local limit_scripts = require "edge.limit_scripts"
local limit_store = require "edge.limit_store"
local redis = require "edge.redis"

local find = string.find
local format = string.format
local ipairs = ipairs
local match = string.match
local max = math.max
local now = ngx.now

local dict = ngx.shared.edge_state
local spent_dict = ngx.shared.edge_budgets

-- Seconds without a word after which an edge no longer counts as there.
local TTL = 5
-- Milliseconds: when no edge was heard for so long Redis was away, and has perhaps forgotten what each
-- has in flight; then it lends nothing until all have told it, which they do once a second.
local SILENCE, CLOSED = 3000, 1500
local EDGES, SINCE, EPOCH, NAME = "redis/edges", "redis/since", "redis/epoch", "redis/name"


local _M = {
    TTL = TTL,
}

local id, prefix = "", ""


-- The name of this edge: made at its first start.
local function read_id(path)
    local file = io.open(path, "r")
    local text = file and match(file:read("*l") or "", "^%x+$")
    if file then
        file:close()
    end
    if text then
        return text
    end
    local random, err = io.open("/dev/urandom", "rb")
    if not random then
        error("could not make a name for this edge: " .. err)
    end
    text = random:read(6):gsub(".", function(c) return format("%02x", c:byte()) end)
    random:close()
    file, err = io.open(path, "w")
    if not file then
        error("could not keep the name of this edge: " .. err)
    end
    file:write(text, "\n")
    file:close()
    return text
end


-- In the master, at start and at every reload.
function _M.init()
    local options = redis.options()
    if not options then
        return
    end
    prefix = options.prefix .. ":"
    id = read_id(ngx.config.prefix() .. "run/edge.id")
    dict:safe_add(SINCE, now())
    dict:safe_add(NAME, id .. format("-%x", now() * 1000))
end


-- What this edge is called in Redis: another name after each start, since what it had then is gone.
function _M.name()
    return dict:get(NAME)
end


-- The name of a thing in Redis, where others may have theirs.
function _M.key(name)
    return prefix .. name
end


-- How many edges there are, as last seen; this one among them.
function _M.edges()
    return max(dict:get(EDGES) or 1, 1)
end


-- A Redis that has begun anew learns what is spent of budgets.
local function remind()
    local args = { "", "", 0 }
    local values = {}
    for _, key in ipairs(spent_dict:get_keys(0)) do
        local spent = find(key, "^budget/") and spent_dict:get(key)
        if spent then
            args[#args + 1] = _M.key(key)
            values[#values + 1] = spent
            values[#values + 1] = limit_store.keep_of(key)
        end
    end
    args[3] = #args - 3
    for i = 1, #values do
        args[#args + 1] = values[i]
    end
    return args[3] == 0 or redis.eval(limit_scripts.remind, args)
end


-- Says that this edge is there. True when Redis has answered, and whether it did not know the edge; nil
-- and the reason when it did not.
function _M.beat()
    local name = _M.name()
    local reply, err = redis.eval(lease_scripts.beat, {
        "", "", 4, _M.key("edges"), _M.key("epoch"), _M.key("beat"), _M.key("closed"),
        name, id .. "-", TTL * 1000, name .. format("/%.3f", now()), SILENCE, CLOSED,
    })
    if not reply then
        return nil, err
    end
    if dict:get(EPOCH) ~= reply[2] then
        local ok
        ok, err = remind()
        if not ok then
            return nil, err
        end
        dict:safe_set(EPOCH, reply[2])
    end
    dict:safe_set(EDGES, reply[1])
    return true, reply[3] == 1
end


-- Redis answers again, and knows all that it must.
function _M.mend()
    dict:safe_set(SINCE, now())
    redis.mend()
end


-- For /state: kind, whether Redis answers, since when it does or does not, how many edges there are.
function _M.describe()
    if not redis.options() then
        return { kind = "memory" }
    end
    local down = redis.down_since()
    return {
        kind = "redis", ok = not down, since = down or dict:get(SINCE), edges = _M.edges(), edge = id,
        leases = lease_table.count(),
    }
end


return _M
