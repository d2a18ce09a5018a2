-- Requests in flight in this worker: one table each, found by the address of nginx's request. Not
-- ngx.ctx: an internal redirect (nginx's own 502 becoming our JSON) wipes it, and a slot would
-- leak. The address stays the same over redirects, is one hash look-up, and is free again only
-- after the log phase.

local ffi = require "ffi"
local base = require "resty.core.base"

local cast = ffi.cast
local get_request = base.get_request
local start_time = ngx.req.start_time
local tonumber = tonumber
local uintptr = ffi.typeof("uintptr_t")


local _M = {}

local live_cache = {}


local function key()
    return tonumber(cast(uintptr, get_request()))
end


-- Begins the table of the current request. Fields are set by the rooms that learn them:
--   access: route, model, name, backend, slot, tries, spare, tried   openai: error
--   stream: chunks, first, last, gap_max, usage, eof, sse
function _M.begin()
    local state = {
        started = start_time(),
        route = false,
        model = false,
        backend = false,
        slot = false,
        tries = 0,
        chunks = 0,
        first = false,
        last = false,
        gap_max = 0,
        sse = false,
        eof = false,
        usage = false,
        error = false,
    }
    live_cache[key()] = state
    return state
end


function _M.get()
    return live_cache[key()]
end


-- Takes the table out: called once, in the log phase, which nginx runs on every ending.
function _M.finish()
    local k = key()
    local state = live_cache[k]
    live_cache[k] = nil
    return state
end


return _M
