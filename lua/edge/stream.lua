-- Watches the answer's bytes pass: first token, gaps, usage, error events. It changes nothing but that
-- it takes out a usage event that the edge itself asked for and, in the usual case of whole events per
-- read, makes no Lua string per chunk: it looks at nginx's own buffer.

local ffi = require "ffi"
require "resty.core.param"  -- declares the two functions used below
local base = require "resty.core.base"
local limits = require "edge.limits"
local live = require "edge.live"
local live_view = require "edge.live_view"
local metrics = require "edge.metrics"
local queue = require "edge.queue"
local responses = require "edge.responses"
local usage_filter = require "edge.usage_filter"

local C = ffi.C
local ffi_string = ffi.string
local get_request = base.get_request
local now = ngx.now
local find = string.find
local match = string.match
local sub = string.sub

ffi.cdef [[ void *memmem(const void *hay, size_t hay_size, const void *needle, size_t needle_size); ]]

local COLON, NEWLINE, RETURN, BRACKET, E = 58, 10, 13, 93, 69
local FFI_OK = 0
local USAGE = '"usage":{'
local USAGE_SIZE = #USAGE
-- How vLLM ends what it gives up when it is told to stop: with status 200 and [DONE]. Inside of
-- generated text the quotes are escaped.
local ABORT = ':"abort"'
local ABORT_SIZE = #ABORT
local ABORTS = { '"finish_reason":"abort"', '"stop_reason":"abort"' }
local MARK = usage_filter.MARK
local MARK_SIZE = #MARK
local NGX_ERROR = ngx.ERROR
-- An event longer than this that is split over reads is searched only in its last part.
local CARRY = 4096

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
    responses.remember(id, state.backend, state.key)
end


local function is_sse()
    local content_type = ngx.header["Content-Type"]
    return content_type ~= nil and find(content_type, "text/event-stream", 1, true) ~= nil
end


-- What the answer is, known once its first bytes come.
local function begin(state)
    state.begun = true
    state.sse = is_sse()
    state.makes = state.route.makes_responses or false
    state.fault = state.route.fault
    state.gaps = metrics.gaps(state.model)
    if state.asks_usage and state.sse then
        state.filter = usage_filter.new()
    end
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


-- Whether these bytes end with the empty line that ends an event.
local function ends_event(data, size)
    if size < 2 or data[size - 1] ~= NEWLINE then
        return false
    end
    local c = data[size - 2]
    return c == NEWLINE or size > 3 and c == RETURN and data[size - 3] == NEWLINE
end


-- Whether these bytes end with the stream's last event, `data: [DONE]`: all others end with a brace.
local function ends_stream(data, size)
    return size > 3 and data[size - 3] == BRACKET and data[size - 4] == E
        and data[size - 2] == NEWLINE and data[size - 1] == NEWLINE
end


-- Passes on what remains of a read without the usage event that the edge asked for.
local function take_out(state, filter, data, size, whole)
    if whole and usage_filter.between(filter) and ends_event(data, size)
        and C.memmem(data, size, MARK, MARK_SIZE) == nil
    then
        return
    end
    local text = whole and ffi_string(data, size) or ngx.arg[1]
    local rest = usage_filter.feed(filter, text)
    if state.eof then
        rest = rest .. usage_filter.flush(filter)
    end
    state.usage = filter.usage or state.usage
    if rest ~= text then
        ngx.arg[1] = rest
    end
end


-- A call without bytes: the end, or nginx's last one for a stream that was cut.
local function run_empty(state)
    if state.eof and state.chunks == 0 and not state.first then
        begin(state)  -- an answer without a byte: a stream without an event is no success
    end
    local filter = state.filter
    if filter and filter.held then
        ngx.arg[1] = usage_filter.flush(filter)
    end
end


-- A Content-Length would be wrong once the usage event is taken out: some engines set it for streams.
function _M.header()
    local state = live.get()
    if state and state.asks_usage and is_sse() then
        ngx.header["Content-Length"] = nil
    end
end


-- Looks at a read's bytes.
local function watch(state, data, size, whole)
    local time = now()
    state.seen = time
    if whole and ends_stream(data, size) then
        state.done = true
    end
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
        return run_empty(state)
    end
    local data = data_p[0]
    watch(state, data, size, whole)
    if state.filter then
        take_out(state, state.filter, data, size, whole)
    end
end


return _M
