-- Limits of keys and models: taken when a request comes in, with tokens as estimated; corrected when
-- it ends, by what the engine has counted. A request that is refused, here or later, takes nothing.

local estimate = require "edge.estimate"
local limit_memory = require "edge.limit_store"
local limit_redis = require "edge.limit_redis"
local limit_rules = require "edge.limit_rules"
local redis = require "edge.redis"

local ngx = ngx
local ceil = math.ceil
local floor = math.floor
local format = string.format
local ipairs = ipairs
local max = math.max
local now = ngx.now
local setmetatable = setmetatable
local worker_pid = ngx.worker.pid


local _M = {}

local NO_KEY = {}
local UNITS = { "requests", "tokens" }
local HEADERS = {}
for _, unit in ipairs(UNITS) do
    HEADERS[unit] = {
        limit = "x-ratelimit-limit-" .. unit,
        left = "x-ratelimit-remaining-" .. unit,
        reset = "x-ratelimit-reset-" .. unit,
    }
end
local WEAK = { __mode = "k" }

-- Model -> key entry -> rules, or false when there are none. Both are made anew when they change, and
-- what hangs on the old ones goes with them.
local rules_cache = setmetatable({}, WEAK)

-- What has the counts: this edge alone, or Redis for several. Chosen once, in the master.
local store = limit_memory


-- In the master, once it is known whether there is a Redis.
function _M.init()
    store = redis.options() and limit_redis or limit_memory
end


local function rules_of(state)
    local model, key = state.model, state.key or NO_KEY
    local by_key = rules_cache[model]
    if not by_key then
        by_key = setmetatable({}, WEAK)
        rules_cache[model] = by_key
    end
    local rules = by_key[key]
    if rules == nil then
        rules = limit_rules.build(state.key, model.id, model.limits, worker_pid()) or false
        by_key[key] = rules
    end
    return rules
end


-- Seconds as the official clients read them: 850ms, 12.5s, 1m30s.
local function duration(seconds)
    if seconds < 1 then
        return ceil(seconds * 1000) .. "ms"
    end
    if seconds < 60 then
        return format("%.3gs", seconds)
    end
    local whole = ceil(seconds)
    local minutes = floor(whole / 60)
    if minutes < 60 then
        return minutes .. "m" .. whole % 60 .. "s"
    end
    return floor(minutes / 60) .. "h" .. minutes % 60 .. "m" .. whole % 60 .. "s"
end


-- Of each unit the rule with the least left, in the headers that OpenAI sends.
local function tell(taken)
    local header, rules, time = ngx.header, taken.rules, taken.at
    for _, unit in ipairs(UNITS) do
        local tightest, least, reset
        for i = 1, #rules do
            local rule = rules[i]
            if rule.unit == unit then
                local left, seconds = store.left(taken, i, time)
                if not least or left < least then
                    tightest, least, reset = rule, left, seconds
                end
            end
        end
        if tightest then
            local names = HEADERS[unit]
            header[names.limit] = tightest.limit
            header[names.left] = least
            header[names.reset] = duration(reset)
        end
    end
end


local PER = { day = "day (UTC)", month = "month (UTC)" }


-- What openai.refuse needs for a rule that has no room for `wait` more seconds.
local function refusal(rule, tokens, wait)
    local who = rule.who
    if rule.kind == "concurrent" then
        return 429, "concurrency_limit", "At most " .. rule.limit .. " requests of " .. who
            .. " may run or wait at the same time. Try again when one has ended.", { retry_after = 1 }
    end
    local more = { retry_after = max(1, ceil(wait)) }
    if rule.kind == "budget" then
        more.no_retry = true
        return 429, "insufficient_quota", "The budget of " .. who .. " is spent: " .. rule.limit
            .. " tokens per " .. PER[rule.period] .. ", and this request needs about " .. tokens
            .. ". It begins anew in " .. duration(wait) .. ".", more
    end
    local asked = rule.unit == "tokens" and ", and this request needs about " .. tokens or ""
    return 429, "rate_limit_exceeded", "The limit of " .. who .. " is reached: " .. rule.limit .. " "
        .. rule.unit .. " per minute" .. asked .. ". Try again in " .. duration(wait) .. ".", more
end


local function too_large(rule, tokens)
    return 429, "request_too_large", "This request needs about " .. tokens .. " tokens, and " .. rule.who
        .. " may use " .. rule.limit .. " per " .. (rule.kind == "budget" and PER[rule.period] or "minute")
        .. ": it can never pass. Shorten the prompt, or ask for fewer tokens (max_tokens).",
        { no_retry = true }
end


-- The first rule that could not even be met alone, or nil.
local function impossible(rules, tokens)
    for i = 1, #rules do
        local rule = rules[i]
        if rule.unit == "tokens" and tokens > rule.limit then
            return rule
        end
    end
end


local UNAVAILABLE = "Redis, in which the limits of this request are counted, does not answer. Nothing was"
    .. " started; try again shortly."


-- Takes what a request needs. true, or nil and what openai.refuse needs; then nothing is taken.
function _M.admit(state)
    local rules = rules_of(state)
    if not rules then
        return true
    end
    local tokens = rules.tokens and estimate.prompt(state) + estimate.answers(state) or 0
    local too_much = rules.tokens and impossible(rules, tokens)
    if too_much then
        return nil, too_large(too_much, tokens)
    end
    local taken = {
        rules = rules, tokens = tokens, at = now(), share = 1, places = 0, refused = false, wait = 0,
        left = false, held = false, fallback = false,
    }
    -- Before anything yields: a client that leaves meanwhile ends in settle.
    state.taken = taken
    store.reserve(taken)
    if taken.refused then
        state.taken = false
        if taken.refused == 0 then
            return nil, 503, "state_unavailable", UNAVAILABLE, { retry_after = 1 }
        end
        tell(taken)
        return nil, refusal(rules[taken.refused], tokens, taken.wait)
    end
    if rules.tokens then
        state.count_usage = true
    end
    tell(taken)
    return true
end


-- The request takes no place of its key any more: at the engine's last byte, or when it ends.
function _M.release(state)
    if state.taken then
        store.release(state.taken)
    end
end


-- Tokens that a request without the engine's count has taken, as well as they can be known.
local function guess(state, status)
    if status >= 400 then
        return 0
    end
    if state.sse then
        return estimate.prompt(state) + state.chunks
    end
    -- An answer that nobody saw may have been nearly whole: else leaving early would be free.
    return state.taken.tokens
end


-- In the log phase: corrects what was taken by what was used.
function _M.settle(state, facts, status)
    if state.backend and status < 400 then
        estimate.learn(state, facts.prompt_tokens, facts.completion_tokens)
    end
    local taken = state.taken
    if not taken then
        return
    end
    store.release(taken)
    -- Nothing ran, or the engine failed: that costs nothing.
    local free = not state.backend or state.error == "engine_unreachable" or status >= 500 and status ~= 504
    local used = free and 0 or guess(state, status)
    if not free and facts.prompt_tokens then
        used = facts.prompt_tokens + (facts.completion_tokens or 0)
    end
    store.settle(taken, used, free, now())
end


return _M
