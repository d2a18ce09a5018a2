-- Asks the engine for the usage of a stream whose client did not: where stream_options of a body must
-- change. Pure. vLLM counts tokens in one more event then, which usage_filter takes out again.

local json_scan = require "edge.json_scan"

local find = string.find
local lower = string.lower
local sub = string.sub
local tonumber = tonumber


local _M = {}

local OPTIONS = { include_usage = "last", continuous_usage_stats = "last" }
-- What vLLM (pydantic) takes for true or false besides JSON's own: a stream that is asked for with 1
-- is one, and must not go uncounted.
local WORDS = {
    ["1"] = true, on = true, t = true, ["true"] = true, y = true, yes = true,
    ["0"] = false, off = false, f = false, ["false"] = false, n = false, no = false,
}
local NUMBERS = { [1] = true, [0] = false }

local starts_cache, stops_cache = {}, {}


-- What the engine takes a value for: true, false (null as well), or nil when it refuses it.
local function truth(text, first, last)
    local kind = json_scan.kind(text, first)
    if kind == "true" then
        return true

    elseif kind == "false" or kind == "null" then
        return false

    elseif kind == "number" then
        return NUMBERS[tonumber(sub(text, first, last))]
    end
    local word = json_scan.string_value(text, first, last)
    return word and WORDS[lower(word)]
end


-- Notes where a stream's body would have to change; nothing for what is no stream or whose route has
-- no such event.
function _M.note(state, text, starts, stops)
    local stream = starts.stream
    if stream and state.route.usage_event and truth(text, stream, stops.stream) then
        state.stream_last = stops.stream
        state.options_first = starts.stream_options or false
        state.options_last = stops.stream_options or false
    end
end


-- Whether the body may have to change.
function _M.wanted(state)
    return state.count_usage and state.stream_last
end


-- The edits inside of an object; nil when the client asked itself, or the engine will refuse it.
local function edits_inside(text, first, last)
    local starts, stops = starts_cache, stops_cache
    local object = sub(text, first, last)
    if not json_scan.scan(object, OPTIONS, starts, stops) then
        return nil
    end
    local before = first - 1
    local edits = {}
    local at = starts.include_usage
    if not at then
        local comma = find(object, "^{%s*}") and "" or ","
        edits[1] = { first = first + 1, last = first, text = '"include_usage":true' .. comma }

    elseif truth(object, at, stops.include_usage) == false then
        edits[1] = { first = before + at, last = before + stops.include_usage, text = "true" }

    else
        return nil
    end

    at = starts.continuous_usage_stats
    if not at then
        return edits
    end
    local continuous = truth(object, at, stops.continuous_usage_stats)
    if continuous == nil then
        return nil
    end
    -- It meant nothing without include_usage; with it every event would have a usage.
    if continuous then
        edits[2] = { first = before + at, last = before + stops.continuous_usage_stats, text = "false" }
    end
    return edits
end


-- The edits that ask for usage (body.edit), once for a request; nil when there are none.
function _M.edits(state, text)
    if not _M.wanted(state) then
        return nil
    end
    local after = state.stream_last
    state.stream_last = false
    local first, last = state.options_first, state.options_last
    local kind = first and json_scan.kind(text, first)
    local edits
    if not first then
        edits = { { first = after + 1, last = after, text = ',"stream_options":{"include_usage":true}' } }

    elseif kind == "null" then
        edits = { { first = first, last = last, text = '{"include_usage":true}' } }

    elseif kind == "object" then
        edits = edits_inside(text, first, last)
    end
    state.asks_usage = edits ~= nil
    return edits
end


return _M
