-- The part of a request's JSON log line that only Lua knows. nginx writes the line (see log_format
-- in the template), buffered, and reopens the file on a signal. Every value here is a number or a
-- name from the fleet, or cleaned: no prompt text, no secrets, no query string.

local fair = require "edge.fair"

local ngx = ngx
local floor = math.floor
local gsub = string.gsub
local sub = string.sub


local _M = {}


-- A client's string as JSON; what is not plain ASCII text becomes "?": many tools read logs.
local function clean(value)
    return '"' .. gsub(gsub(sub(value, 1, 256), "[^%w%p ]", "?"), '["\\]', "?") .. '"'
end


local function name(value)
    return value and '"' .. value .. '"' or "null"
end


-- Whole milliseconds: nginx's clock has no finer ones.
local function ms(seconds)
    return seconds and floor(seconds * 1000 + 0.5) or "null"
end


local function tenth_ms(seconds)
    return seconds and floor(seconds * 10000 + 0.5) / 10 or "null"
end


local function gaps(state)
    if not state.sse or state.chunks < 2 then
        return ',"itl_mean_ms":null,"itl_max_ms":null'
    end
    return ',"itl_mean_ms":' .. tenth_ms((state.last - state.first) / (state.chunks - 1))
        .. ',"itl_max_ms":' .. ms(state.gap_max)
end


-- The path of a request that no route serves. nginx gives up some before it has read one.
local function raw_path()
    local uri = ngx.var.uri
    return uri and uri ~= "/edge-error" and clean(uri) or "null"
end


-- `state` is the request's table, `facts` what the log phase worked out.
function _M.line(state, facts)
    local model, backend, route = state.model, state.backend, state.route
    return '"key":' .. name(state.key and state.key.name)
        .. ',"model":' .. name(model and model.id)
        .. ',"fallback_from":' .. name(state.asked and state.asked.id)
        .. ',"backend":' .. name(backend and backend.id)
        .. ',"path":' .. (route and name(route.path) or raw_path())
        .. ',"end":"' .. facts.ending
        .. '","error":' .. name(state.error)
        .. ',"rule":' .. (state.rule and state.rule.number or "null")
        .. ',"stream":' .. (state.sse and "true" or "false")
        .. ',"prompt_tokens":' .. (facts.prompt_tokens or "null")
        .. ',"completion_tokens":' .. (facts.completion_tokens or "null")
        .. ',"priority":' .. name(fair.NAMES[state.class])
        .. ',"queue_place":' .. (state.place or "null")
        .. ',"queue_ms":' .. ms(state.waited)
        .. ',"connect_ms":' .. ms(facts.connect)
        .. ',"ttft_ms":' .. ms(facts.ttft)
        .. ',"total_ms":' .. ms(facts.total)
        .. gaps(state)
        .. ',"chunks":' .. state.chunks
        .. ',"retries":' .. (state.tries > 1 and state.tries - 1 or 0)
end


return _M
