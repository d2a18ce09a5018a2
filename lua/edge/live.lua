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


-- Begins the table of the current request. All fields stand here, so that it never grows; false is
-- "not known". Each is set by the room that learns it.
function _M.begin()
    local state = {
        started = start_time(),
        error = false,       -- openai: the code of an error that the edge itself answered with
        -- access and request
        route = false,
        model = false,
        name = false,        -- the name that the client sent
        reported = false,    -- that name is known from the engines only
        backend = false,
        slot = false,        -- the backend whose slot this request holds
        text = false,        -- the body, until it is known whether it must change
        from_file = false,
        name_first = false,
        name_last = false,
        field = false,       -- where the model stands in a multipart body
        body_size = 0,
        -- balancer
        tries = 0,
        spare = 0,           -- how many other backends may be tried
        tried = false,
        -- stream; times in seconds
        begun = false,
        sse = false,
        makes = false,       -- the answer makes a response that a later GET asks for
        gaps = false,
        carry = false,       -- the end of a read that was not a whole event
        first = false,
        last = false,
        chunks = 0,
        gap_max = 0,
        usage = false,
        error_event = false,
        eof = false,
        ended = false,       -- when the engine's answer was complete
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
