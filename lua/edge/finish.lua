-- The log phase: every request ends here, however it ended. Releases the slot, names the ending,
-- counts, writes the log line. No string.match and the like on the usual way: LuaJIT does not
-- compile them, and this phase was half of the edge's cost before.

local access_log = require "edge.access_log"
local limits = require "edge.limits"
local live = require "edge.live"
local metrics = require "edge.metrics"
local prefix_map = require "edge.prefix_map"
local pulse = require "edge.pulse"
local queue = require "edge.queue"

local ngx = ngx
local byte = string.byte
local find = string.find
local match = string.match
local now = ngx.now
local tonumber = tonumber

local ZERO, NINE, SPACE, COLON = 48, 57, 32, 58


local _M = {}

-- Counters by what they are labelled with: few, since models and backends come from the fleet.
local counters_cache = {}
-- What the log line needs of the request that is ending; the log phase never yields.
local facts_cache = {}


local function counters_of(model, backend)
    local by_backend = counters_cache[backend]
    if not by_backend then
        by_backend = {}
        counters_cache[backend] = by_backend
    end
    local counters = by_backend[model]
    if not counters then
        counters = { endings = {}, errors = {} }
        if model ~= "" then
            counters.prompt = metrics.counter("tokens", "model", model, "kind", "prompt")
            counters.completion = metrics.counter("tokens", "model", model, "kind", "completion")
            counters.retries = metrics.counter("retries", "model", model)
            counters.unretried = metrics.counter("unretried", "model", model)
            counters.prefix_prompt = metrics.counter("prefix_prompt", "model", model, "backend", backend)
            counters.prefix_known = metrics.counter("prefix_known", "model", model, "backend", backend)
            counters.prefix_shared = metrics.counter("prefix_shared", "model", model, "backend", backend)
            counters.prefix_salted = metrics.counter("prefix_salted", "model", model, "backend", backend)
        end
        by_backend[model] = counters
    end
    return counters
end


local function request_counter(counters, model, backend, status, ending)
    local by_status = counters.endings[ending]
    if not by_status then
        by_status = {}
        counters.endings[ending] = by_status
    end
    local counter = by_status[status]
    if not counter then
        counter = metrics.counter("requests", "model", model, "backend", backend,
                                  "code", tostring(status), "end", ending)
        by_status[status] = counter
    end
    return counter
end


local function error_counter(counters, model, code)
    local counter = counters.errors[code]
    if not counter then
        counter = metrics.counter("errors", "model", model, "error", code)
        counters.errors[code] = counter
    end
    return counter
end


-- How an answer that an engine began came to its end.
local function ending_of(state, status, time)
    if ngx.var.request_completion ~= "OK" then
        if not state.done then
            return "client_left"
        end
        -- OpenAI's client closes the connection at the last event, before the engine has ended its answer.
        return state.error_event and "engine_error" or "complete"
    end
    if status >= 500 or state.error_event then
        return "engine_error"
    end
    if not state.eof then
        -- nginx cut a silent stream, or the engine closed it: the silence tells which.
        local silent = time - (state.seen or state.started + state.waited)
        return silent >= state.model.read - 0.05 and "engine_timeout" or "engine_cut"
    end
    if state.sse and state.chunks == 0 then
        return "engine_cut"
    end
    return "complete"
end


local ERROR_ENDINGS = {
    engine_unreachable = "engine_error",
    engine_failed = "engine_cut",
    engine_timeout = "engine_timeout",
    edge_error = "edge_error",
    cancelled = "cancelled",
}
-- Endings that an engine is to blame for.
local FAULTS = { engine_error = true, engine_cut = true, engine_timeout = true }


local function classify(state, status, time)
    if status == 499 then
        return "client_left"
    end
    if state.error then
        return ERROR_ENDINGS[state.error] or "refused"
    end
    if state.cancelled and not state.eof then
        return "cancelled"
    end
    if state.backend then
        return ending_of(state, status, time)
    end
    if status >= 500 then
        return "edge_error"
    end
    return status >= 400 and "refused" or "complete"
end


-- The number that follows a JSON key (given with its quotes), or nil.
local function number_after(text, key)
    local _, at = find(text, key, 1, true)
    if not at then
        return nil
    end
    local value
    for i = at + 1, at + 24 do
        local c = byte(text, i)
        if c and c >= ZERO and c <= NINE then
            value = (value or 0) * 10 + c - ZERO

        elseif value or (c ~= COLON and c ~= SPACE) then
            break
        end
    end
    return value
end


-- Tokens from the last usage object that passed: OpenAI's names, or those of Anthropic and of the
-- Responses API.
local function read_usage(usage, facts)
    facts.prompt_tokens = number_after(usage, '"prompt_tokens"')
        or number_after(usage, '"input_tokens"')
    facts.completion_tokens = number_after(usage, '"completion_tokens"')
        or number_after(usage, '"output_tokens"')
end


-- Seconds that the last connect took; nginx lists one per engine tried ("0.001, -").
local function connect_time(value)
    return tonumber(value) or (value and tonumber(match(value, "([%d.]+)$")))
end


-- Once per request that an engine got, whatever was thought of while it waited.
local function count_prefix(state, counters)
    local chain = state.chain
    metrics.add(counters.prefix_prompt, chain[2 * chain.n])
    metrics.add(counters.prefix_known, state.known)
    metrics.add(counters.prefix_shared, state.shared)
    if state.opening and prefix_map.came_before(state.opening) and state.known == 0 then
        metrics.add(counters.prefix_salted, chain[2 * chain.n])
    end
end


local function count(state, facts, status)
    local model = state.model and state.model.id or ""
    local backend = state.backend and state.backend.id or ""
    local counters = counters_of(model, backend)
    metrics.add(request_counter(counters, model, backend, status, facts.ending), 1)
    if state.error then
        metrics.add(error_counter(counters, model, state.error), 1)
    end
    if model == "" then
        return
    end
    if state.known and state.backend and state.error ~= "engine_unreachable" then
        count_prefix(state, counters)
    end
    if state.tries > 1 then
        metrics.add(counters.retries, state.tries - 1)
    end
    if state.unretried then
        metrics.add(counters.unretried, 1)
    end
    if state.asked then
        metrics.add(metrics.counter("fallbacks", "model", state.asked.id, "served", model), 1)
    end
    if facts.prompt_tokens then
        metrics.add(counters.prompt, facts.prompt_tokens)
    end
    if facts.completion_tokens then
        metrics.add(counters.completion, facts.completion_tokens)
    end
    if state.backend or state.waited > 0 then
        metrics.observe("wait", model, state.waited)
    end
    if state.backend then
        metrics.observe("duration", model, facts.total)
        if state.first and state.sse then
            metrics.observe("ttft", model, facts.ttft)
        end
    end
end


function _M.run()
    -- A request that nginx refused by itself has passed no other phase.
    local state = live.finish()
    if not state then
        live.begin()
        state = live.finish()
    end
    queue.finish(state)

    local var = ngx.var
    local time = now()
    local status = ngx.status
    local facts = facts_cache
    facts.total = (state.ended or time) - state.started
    facts.ttft = state.first and state.first - state.started
    facts.ending = classify(state, status, time)
    facts.connect = state.backend and connect_time(var.upstream_connect_time)
    if state.usage then
        read_usage(state.usage, facts)

    else
        facts.prompt_tokens, facts.completion_tokens = nil, nil
    end
    if state.backend and FAULTS[facts.ending] then
        pulse.fault(state.backend.pulse, state.backend.state_key)
    end
    limits.settle(state, facts, status)
    count(state, facts, status)
    metrics.settle()
    var.edge_log = access_log.line(state, facts)
end


return _M
