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

-- Connections kept for probes, the admin listener and clients that are being refused.
local RESERVED = 32

local live_cache = {}
local live_count = 0
local live_limit = math.huge


local function key()
    return tonumber(cast(uintptr, get_request()))
end


-- Begins the table of the current request. All fields stand here, so that it never grows; false is
-- "not known". Each is set by the room that learns it.
function _M.begin()
    local state = {
        started = start_time(),
        id = false,          -- as in the log and in X-Request-Id
        cancelled = false,   -- an operator ends it
        error = false,       -- openai: the code of an error that the edge itself answered with
        -- access and request
        route = false,
        rule = false,        -- the rule that it falls under
        path = false,        -- without what that rule takes off its front; false: as it came
        key = false,         -- whose request it is (keys.json); false when no keys are asked for
        model = false,
        asked = false,       -- the model that was asked for, when a fallback model serves instead
        name = false,        -- the name that the client sent, or its rule's
        sent = false,        -- the name that stands in the body now
        previous = false,    -- the response that this request continues
        reported = false,    -- that name is known from the engines only
        backend = false,
        pinned = false,      -- id of the only backend that can answer
        weight = 1,          -- how many sequences it asks for: n × prompts
        session = false,     -- what the requests of one session have in common, a number
        chain = false,       -- the hashes of its prompt
        opening = false,     -- with a cache_salt: a key of its beginning without it
        known = false,       -- bytes of it that the backend chosen by it has probably seen
        shared = 0,          -- ... and that any backend of the model has
        kv_tokens = 0,       -- what it takes of an engine's KV cache, estimated
        kv = false,          -- the budget that it holds them of
        slot = false,        -- the backend whose slot (of this weight) this request holds
        text = false,        -- the body, until it is known whether it must change
        from_file = false,
        name_first = false,
        name_last = false,
        field = false,       -- where the model stands in a multipart body
        count_usage = false, -- its tokens must be known, also those of a stream
        stream_last = false, -- where the body may have to change for that; false: it need not, or has
        options_first = false,
        options_last = false,
        asks_usage = false,  -- the edge asks for usage, the client did not
        body_size = 0,
        -- limits
        max_tokens = false,  -- how long each answer may be, as the client says
        taken = false,       -- what it has taken of its limits (limit_store.lua)
        -- queue; times in seconds
        ticket = false,      -- its place in a line, while it waits
        deadline = false,
        class = false,       -- 1: high, 2: normal, 3: low; while it waits or has waited
        place = false,       -- how many waited when it joined, itself among them
        waited = 0,
        -- dispatch
        tries = 0,
        tried = false,
        unretried = false,   -- the retry budget of its model was spent
        -- stream; times in seconds
        begun = false,
        sse = false,
        makes = false,       -- the answer makes a response that a later GET asks for
        gaps = false,
        carry = false,       -- the end of a read that was not a whole event
        first = false,
        last = false,
        seen = false,        -- the last read, comments included
        fault = false,       -- what an error event looks like on this path
        chunks = 0,
        gap_max = 0,
        usage = false,
        filter = false,      -- takes the usage that the edge asked for out of the stream
        error_event = false,
        done = false,        -- the last event of a stream has come
        eof = false,
        ended = false,       -- when the engine's answer was complete
    }
    live_cache[key()] = state
    live_count = live_count + 1
    return state
end


-- A request may need two connections, its client's and its engine's.
function _M.init(connections)
    live_limit = math.floor((connections - RESERVED) / 2)
end


-- True when this worker has no connection left to an engine: nginx would reset clients then.
function _M.full()
    return live_count > live_limit
end


-- How many requests this worker has.
function _M.count()
    return live_count
end


-- All requests of this worker, by an address that says nothing.
function _M.all()
    return live_cache
end


function _M.get()
    return live_cache[key()]
end


-- Takes the table out: called once, in the log phase, which nginx runs on every ending.
function _M.finish()
    local k = key()
    local state = live_cache[k]
    live_cache[k] = nil
    if state then
        live_count = live_count - 1
    end
    return state
end


return _M
