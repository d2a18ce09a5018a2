-- One JSON line per request, put into $edge_log, which nginx writes (buffered, rotated by a
-- signal). Every value is a number, a name from the fleet, or cleaned here: no prompt text, no
-- secrets, no query string.

local ngx = ngx
local floor = math.floor
local format = string.format
local gsub = string.gsub
local sub = string.sub
local utctime = ngx.utctime


local _M = {}

-- The date and time of the last logged second.
local second_cache, stamp_cache = 0, ""


local function timestamp(time)
    local second = floor(time)
    if second ~= second_cache then
        second_cache = second
        stamp_cache = gsub(utctime(), " ", "T") .. "."
    end
    return stamp_cache .. sub(format("%d", 1000 + floor((time - second) * 1000)), 2) .. "Z"
end


-- A string as JSON; whatever is not plain ASCII text becomes "?": log lines are read by many tools.
local function text(value)
    if not value then
        return "null"
    end
    return '"' .. gsub(sub(value, 1, 256), '[^%w%p ]', "?"):gsub('["\\]', "?") .. '"'
end


local function name(value)
    return value and '"' .. value .. '"' or "null"
end


local function ms(seconds)
    return seconds and floor(seconds * 10000 + 0.5) / 10 or "null"
end


-- The path of a request that has no route; none when nginx gave it up before it read one.
local function path()
    local uri = ngx.var.uri
    return uri ~= "/edge-error" and uri or nil
end


-- `state` is the request's table (or an empty one), `facts` what the log phase worked out.
function _M.line(state, facts)
    local var = ngx.var
    local model, backend, route = state.model, state.backend, state.route
    local streamed = state.chunks > 1 and state.sse
    return '{"ts":"' .. timestamp(facts.time)
        .. '","id":' .. text(var.edge_request_id)
        .. ',"key":null,"model":' .. name(model and model.id)
        .. ',"backend":' .. name(backend and backend.id)
        .. ',"path":' .. (route and name(route.path) or text(path()))
        .. ',"method":' .. text(var.request_method)
        .. ',"status":' .. facts.status
        .. ',"end":"' .. facts.ending
        .. '","error":' .. name(state.error)
        .. ',"stream":' .. (state.sse and "true" or "false")
        .. ',"bytes_in":' .. (var.request_length or 0)
        .. ',"bytes_out":' .. (var.bytes_sent or 0)
        .. ',"prompt_tokens":' .. (facts.prompt_tokens or "null")
        .. ',"completion_tokens":' .. (facts.completion_tokens or "null")
        .. ',"queue_ms":0,"connect_ms":' .. ms(facts.connect)
        .. ',"ttft_ms":' .. ms(facts.ttft)
        .. ',"total_ms":' .. ms(facts.total)
        .. ',"itl_mean_ms":' .. ms(streamed and (state.last - state.first) / (state.chunks - 1))
        .. ',"itl_max_ms":' .. ms(streamed and state.gap_max)
        .. ',"chunks":' .. state.chunks
        .. ',"retries":' .. (state.tries > 1 and state.tries - 1 or 0)
        .. ',"client":' .. text(var.remote_addr) .. "}"
end


return _M
