-- The log phase: every request ends here, however it ended. Releases the slot, names the ending,
-- counts, writes the line.

local access_log = require "edge.access_log"
local live = require "edge.live"
local metrics = require "edge.metrics"
local promtext = require "edge.promtext"
local slots = require "edge.slots"

local ngx = ngx
local labels = promtext.labels
local match = string.match
local now = ngx.now
local tonumber = tonumber


local _M = {}

-- What a request that nginx refused before the access phase looks like.
local NOTHING = { chunks = 0, tries = 0 }

-- Label texts by what they are made of: few, since models and backends come from the fleet.
local labels_cache = {}


local function request_labels(state, facts)
    local model = state.model and state.model.id or ""
    local backend = state.backend and state.backend.id or ""
    local by_backend = labels_cache[backend]
    if not by_backend then
        by_backend = {}
        labels_cache[backend] = by_backend
    end
    local by_model = by_backend[model]
    if not by_model then
        by_model = { tokens = {} }
        by_backend[model] = by_model
    end
    local by_ending = by_model[facts.ending]
    if not by_ending then
        by_ending = {}
        by_model[facts.ending] = by_ending
    end
    local text = by_ending[facts.status]
    if not text then
        text = labels("model", model, "backend", backend, "code", tostring(facts.status),
                      "end", facts.ending)
        by_ending[facts.status] = text
    end
    return text, by_model
end


-- How an answer that an engine began came to its end.
local function ending_of(state, status, time)
    if ngx.var.request_completion ~= "OK" then
        return "client_left"
    end
    if status >= 500 or state.error_event then
        return "engine_error"
    end
    if not state.eof then
        -- nginx cut a silent stream, or the engine closed it: the silence tells which.
        local silent = time - (state.last or state.started)
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
}


local function classify(state, status, time)
    if status == 499 then
        return "client_left"
    end
    if state.error then
        return ERROR_ENDINGS[state.error] or "refused"
    end
    if state.backend then
        return ending_of(state, status, time)
    end
    if status >= 500 then
        return "edge_error"
    end
    return status >= 400 and "refused" or "complete"
end


-- Tokens from the last usage object that passed: OpenAI's names, or Anthropic's and the Responses
-- API's.
local function read_usage(state, facts)
    local usage = state.usage
    if not usage then
        return
    end
    facts.prompt_tokens = tonumber(match(usage, '"prompt_tokens"%s*:%s*(%d+)')
                                   or match(usage, '"input_tokens"%s*:%s*(%d+)'))
    facts.completion_tokens = tonumber(match(usage, '"completion_tokens"%s*:%s*(%d+)')
                                       or match(usage, '"output_tokens"%s*:%s*(%d+)'))
end


local function count(state, facts)
    local text, keys = request_labels(state, facts)
    metrics.add("requests", text, 1)
    local model = state.model
    if not model then
        return
    end
    if state.tries > 1 then
        metrics.add("retries", labels("model", model.id), state.tries - 1)
    end
    if facts.ttft and state.sse then
        metrics.observe("ttft", model.id, facts.ttft)
    end
    if state.backend then
        metrics.observe("duration", model.id, facts.total)
    end
    local tokens = keys.tokens
    if not tokens.prompt then
        tokens.prompt = labels("model", model.id, "kind", "prompt")
        tokens.completion = labels("model", model.id, "kind", "completion")
    end
    if facts.prompt_tokens then
        metrics.add("tokens", tokens.prompt, facts.prompt_tokens)
    end
    if facts.completion_tokens then
        metrics.add("tokens", tokens.completion, facts.completion_tokens)
    end
end


function _M.run()
    local state = live.finish() or NOTHING
    if state.slot then
        slots.release(state.slot)
        state.slot = false
    end

    local time = now()
    local status = ngx.status
    local facts = {
        time = time,
        status = status,
        total = time - (state.started or ngx.req.start_time()),
        ttft = state.first and state.first - state.started,
        ending = classify(state, status, time),
        connect = state.backend
            and tonumber(match(ngx.var.upstream_connect_time or "", "([%d.]+)$")),
        prompt_tokens = nil,
        completion_tokens = nil,
    }
    read_usage(state, facts)
    count(state, facts)
    metrics.settle()
    ngx.var.edge_log = access_log.line(state, facts)
end


return _M
