-- This edge among those that share a Redis: its name there, how many there are, and whether Redis
-- answers. Once a second one worker says that the edge is there; while Redis is silent it asks more often.

local limit_scripts = require "edge.limit_scripts"
local limit_store = require "edge.limit_store"
local redis = require "edge.redis"

local every = ngx.timer.every
local find = string.find
local format = string.format
local ipairs = ipairs
local log = ngx.log
local match = string.match
local max = math.max
local now = ngx.now
local ERR = ngx.ERR

local dict = ngx.shared.edge_state
local spent_dict = ngx.shared.edge_budgets

-- Seconds: between two looks, between two words to Redis, and how long an edge counts as there.
local LOOK, INTERVAL, TTL = 0.25, 1, 5
local EDGES, SINCE, EPOCH = "redis/edges", "redis/since", "redis/epoch"


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
end


function _M.id()
    return id
end


-- The name of a thing in Redis, where others may have theirs.
function _M.key(name)
    return prefix .. name
end


-- How many edges there are, as last seen; this one among them.
function _M.edges()
    return max(dict:get(EDGES) or 1, 1)
end


-- KEYS: the edges with the moment at which each is gone, and a name that this Redis has had since it was
-- empty. ARGV: this edge, milliseconds, a name if there is none yet.
local BEAT = redis.script([[
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('SET', KEYS[2], ARGV[3], 'NX')
return { redis.call('ZCARD', KEYS[1]), redis.call('GET', KEYS[2]) }
]])


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


-- Says that this edge is there. True when Redis has answered.
local function beat()
    local fresh = id .. format("%.3f", now())
    local reply = redis.eval(BEAT, { "", "", 2, _M.key("edges"), _M.key("epoch"), id, TTL * 1000, fresh })
    if not reply then
        return false
    end
    if dict:get(EPOCH) ~= reply[2] then
        if not remind() then
            return false
        end
        dict:safe_set(EPOCH, reply[2])
    end
    dict:safe_set(EDGES, reply[1])
    if not redis.usable() then
        dict:safe_set(SINCE, now())
        redis.mend()
    end
    return true
end


local function look(premature)
    local pause = redis.usable() and INTERVAL or LOOK
    if premature or not dict:safe_add("redis/turn", true, pause - 0.05) then
        return
    end
    beat()
end


function _M.init_worker()
    if not redis.options() then
        return
    end
    local ok, err = every(LOOK, look)
    if not ok then
        log(ERR, "edge: shared state: could not start: ", err)
    end
end


-- For /state: kind, whether Redis answers, since when it does or does not, how many edges there are.
function _M.describe()
    if not redis.options() then
        return { kind = "memory" }
    end
    local down = redis.down_since()
    return { kind = "redis", ok = not down, since = down or dict:get(SINCE), edges = _M.edges(), edge = id }
end


return _M
