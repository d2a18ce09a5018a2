-- What a JSON request tells the policies beside its model: how many sequences it weighs, which
-- session it belongs to, and the hashes of its prompt. Read while the body is at hand; a request that
-- waits has dropped it by the time a backend is chosen.

local json_scan = require "edge.json_scan"
local prefix = require "edge.prefix"

local ngx = ngx
local byte = string.byte
local floor = math.floor
local gsub = string.gsub
local sub = string.sub
local tonumber = tonumber

local QUOTE, OPEN_BRACKET = 34, 91

local MAX_WEIGHT = 1024
local MAX_NUMBER = 8  -- bytes of an `n` worth reading


local _M = {
    -- Top-level members that are read here.
    WANTED = { "messages", "prompt", "input", "tools", "system", "instructions", "cache_salt", "n",
               "user", "prompt_cache_key", "max_tokens", "max_completion_tokens", "max_output_tokens" },
    -- The ends of their elements, as json_scan fills them in.
    elements = { messages = { n = 0 }, prompt = { n = 0 }, input = { n = 0 } },
}

local elements = _M.elements


-- `n`: how many answers to each prompt. vLLM takes "2" for 2 as well.
local function answers(text, first, last)
    if not first or last - first >= MAX_NUMBER then
        return 1
    end
    return tonumber((gsub(sub(text, first, last), '"', ""))) or 1
end


-- How many prompts a value has: an array of strings, or of arrays of tokens, has one in each.
local function prompts(text, first, ends)
    if not first or ends.n < 2 then
        return 1
    end
    local c = byte(text, ends[1])
    -- By the last byte of its first element: '"' or ']'; messages end with '}'.
    return (c == QUOTE or c == OPEN_BRACKET + 2) and ends.n or 1
end


local function weight_of(text, starts, stops)
    local weight = answers(text, starts.n, stops.n) * prompts(text, starts.prompt, elements.prompt)
        * prompts(text, starts.input, elements.input)
    if weight < 1 or weight ~= weight then  -- NaN is JSON to Python
        return 1
    end
    return weight < MAX_WEIGHT and floor(weight) or MAX_WEIGHT
end


-- What requests of one session have in common, as a number; false when nothing.
local function session_of(text, starts, stops)
    local header = ngx.var.http_x_session_id
    if header and header ~= "" then
        return prefix.number(header, 1, #header)
    end
    for _, key in ipairs({ "user", "prompt_cache_key" }) do
        local first, last = starts[key], stops[key]
        -- Not an empty string, nor null.
        if first and last - first > 1 and json_scan.kind(text, first) == "string" then
            return prefix.number(text, first, last)
        end
    end
    return false
end


-- How many tokens each answer may have at most; false when the client does not say.
local function longest_answer(text, starts, stops)
    local first = starts.max_completion_tokens or starts.max_tokens or starts.max_output_tokens
    local last = stops.max_completion_tokens or stops.max_tokens or stops.max_output_tokens
    local limit = first and last - first < MAX_NUMBER and tonumber(sub(text, first, last))
    return limit and limit >= 0 and floor(limit) or false
end


-- Notes all of it in the request's state, whose model is known.
function _M.read(state, text, starts, stops)
    state.weight = weight_of(text, starts, stops)
    state.max_tokens = longest_answer(text, starts, stops)
    local model, rule = state.model, state.rule
    if #model.backends < 2 then
        return
    end
    local policy = rule and rule.policy or model.policy
    if policy == "prefix" then
        -- Engines keep an adapter's cache apart from the model's.
        local name = state.name
        local adapter = name and not model.is_own[name] and name or ""
        local seed = model.id .. "\0" .. adapter
        state.chain = prefix.chain(text, starts, stops, elements, seed)
        state.opening = starts.cache_salt and prefix.opening(text, starts, stops, seed) or false

    elseif policy == "session" then
        state.session = session_of(text, starts, stops)
    end
end


return _M
