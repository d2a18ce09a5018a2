-- Watches the answer's bytes pass: first token, gaps, usage, error events. It changes nothing and,
-- in the usual case of whole events per read, makes no Lua string per chunk: it looks at nginx's
-- own buffer.

local ffi = require "ffi"
require "resty.core.param"  -- declares the two functions used below
local base = require "resty.core.base"
local limits = require "edge.limits"
local live = require "edge.live"
local live_view = require "edge.live_view"
local metrics = require "edge.metrics"
local queue = require "edge.queue"

local C = ffi.C
local ffi_string = ffi.string
local get_request = base.get_request
local now = ngx.now
local find = string.find
local match = string.match
local sub = string.sub
local log = ngx.log
local ERR = ngx.ERR

local responses = ngx.shared.edge_responses

ffi.cdef [[ void *memmem(const void *hay, size_t hay_size, const void *needle, size_t needle_size); ]]

local COLON, NEWLINE = 58, 10
local FFI_OK = 0
local USAGE = '"usage":{'
local USAGE_SIZE = #USAGE
-- How vLLM ends what it gives up when it is told to stop: with status 200 and [DONE]. Inside of
-- generated text the quotes are escaped.
local ABORT = ':"abort"'
local ABORT_SIZE = #ABORT
local ABORTS = { '"finish_reason":"abort"', '"stop_reason":"abort"' }
local NGX_ERROR = ngx.ERROR
-- An event longer than this that is split over reads is searched only in its last part.
local CARRY = 4096
local RESPONSE_TTL = 3600

local data_p = ffi.new("unsigned char *[1]")
local size_p = ffi.new("size_t[1]")


local _M = {}


-- Where the answer to POST /v1/responses was made, for a later GET or cancel.
local function note_response(state, text)
    local id = match(text, '"id"%s*:%s*"(resp[%w_-]+)"')
    if not id then
        return
    end
    state.makes = false
    local ok, err = responses:set(id, state.backend.id, RESPONSE_TTL)
    if not ok then
        log(ERR, "edge: stream: could not remember a response: ", err)
    end
end


-- What the answer is, known once its first bytes come.
local function begin(state)
    state.begun = true
    local content_type = ngx.header["Content-Type"]
    state.sse = content_type ~= nil and find(content_type, "text/event-stream", 1, true) ~= nil
    state.makes = state.route.makes_responses or false
    state.fault = state.route.fault
    state.gaps = metrics.gaps(state.model)
end


-- A read that does not hold whole events, or the first ones: as text, with what the last read left.
local function slow(state, text, time)
    local carried = state.carry
    if carried then
        text = carried .. text
    end
    if state.makes then
        note_response(state, text)
    end
    if not state.first and state.sse then
        -- TTFT is the first event that is not a comment (vLLM's keep-alive while a request waits).
        if sub(text, 1, 5) == "data:" or sub(text, 1, 6) == "event:"
            or find(text, "\ndata:", 1, true)
        then
            state.first = time
        end

    elseif not state.first then
        state.first = time
    end
    local at = find(text, USAGE, 1, true)
    while at do
        local usage = sub(text, at, at + 400)
        -- A tool's schema may have a property of this name: the engine's own counts tokens.
        if find(usage, '_tokens":', 1, true) then
            state.usage = usage
        end
        at = find(text, USAGE, at + USAGE_SIZE, true)
    end
    if state.sse and find(text, state.fault, 1, true)
        or find(text, ABORTS[1], 1, true) or find(text, ABORTS[2], 1, true)
    then
        state.error_event = true
    end
    if state.sse and sub(text, -1) == "\n" and not state.makes then
        state.carry = false

    else
        state.carry = sub(text, -CARRY)
    end
end


local function buffer_of(request)
    local rc = C.ngx_http_lua_ffi_get_body_filter_param_body(request, data_p, size_p)
    return rc == FFI_OK
end


function _M.run()
    local state = live.get()
    if not state or not state.backend then
        return
    end

    if state.cancelled then
        return NGX_ERROR  -- nginx drops both sides
    end
    local request = get_request()
    if C.ngx_http_lua_ffi_get_body_filter_param_eof(request) == 1 then
        state.eof = true
        state.ended = now()
        -- The engine is done. The log phase may come seconds later: a worker that drains, or a client
        -- that asked to close, keeps the request until the client has closed its side.
        queue.release(state)
        limits.release(state)
    end
    size_p[0] = 0
    local whole = buffer_of(request)
    local size = size_p[0]
    if size == 0 then
        if state.eof and state.chunks == 0 and not state.first then
            begin(state)  -- an answer without a byte: a stream without an event is no success
        end
        return
    end
    local time = now()
    state.seen = time
    local data = data_p[0]
    if state.first and not state.carry and whole and state.sse and data[size - 1] == NEWLINE then
        -- The usual read of a stream: whole events, looked at in place.
        if C.memmem(data, size, USAGE, USAGE_SIZE) ~= nil
            or C.memmem(data, size, state.fault, #state.fault) ~= nil
            or C.memmem(data, size, ABORT, ABORT_SIZE) ~= nil
        then
            slow(state, ffi_string(data, size), time)
        end
        if data[0] == COLON then
            return
        end

    else
        if not state.begun then
            begin(state)
        end
        slow(state, whole and ffi_string(data, size) or ngx.arg[1], time)
        if not state.first then
            return
        end
    end

    state.backend.pulse.heard = time
    if time >= live_view.due then
        live_view.tick()
    end
    local last = state.last
    state.last = time
    state.chunks = state.chunks + 1
    if last and state.sse then
        local gap = time - last
        metrics.add_gap(state.gaps, gap)
        if gap > state.gap_max then
            state.gap_max = gap
        end
    end
end


return _M
