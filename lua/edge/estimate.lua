-- How many tokens a request will take, before an engine has counted them: from the bytes of its body
-- and what the engines counted for earlier requests of its model.

local abs = math.abs
local ceil = math.ceil
local log = ngx.log
local max = math.max
local ERR = ngx.ERR
local min = math.min

local dict = ngx.shared.edge_limits

-- Until an engine has counted: English has four bytes a token, JSON around it more.
local BYTES_PER_TOKEN = 4
local ANSWER = 256
-- Weight of a new request in what is learned. The first ones weigh more, or an edge that has just started
-- would go by a guess for minutes, and give away more of a KV cache than there is.
local SHARE = 0.05
local ENOUGH = 20
-- What a worker has learned is shared when it is this much away from what is.
local NEWS = 0.03
-- Of an answer at most this many tokens are reserved; what it takes beyond is charged when it ends.
local ANSWER_CAP = 4096
-- In the KV cache: so many times the usual answer, or this much more than the usual part of max_tokens.
local MORE = 2
local PART_MARGIN = 0.25
-- Engines give away their cache in blocks, and of each sequence's last one a part stays empty.
local BLOCK = 16


local _M = {
    ANSWER_CAP = ANSWER_CAP,
}

-- Model id -> bytes per token, tokens per answer, as this worker knows them.
local learned_cache = {}


local function learned(model)
    local known = learned_cache[model.id]
    if not known then
        local bytes, answer = dict:get("bytes/" .. model.id), dict:get("answer/" .. model.id)
        local part = dict:get("part/" .. model.id)
        known = {
            bytes = bytes or BYTES_PER_TOKEN,
            answer = answer or ANSWER,
            part = part or 1,
            shared = {},     -- what the dictionary was last given of each
            prompt = false,  -- tokens of the usual prompt
            -- How many requests each has been learned from.
            seen = {
                bytes = bytes and ENOUGH or 0,
                answer = answer and ENOUGH or 0,
                part = part and ENOUGH or 0,
            },
        }
        learned_cache[model.id] = known
    end
    return known
end


-- Lets new workers begin where this one is.
local function share(model, known, what)
    local value, was = known[what], known.shared[what]
    if was and abs(value - was) < NEWS * was then
        return
    end
    known.shared[what] = value
    local ok, err = dict:safe_set(what .. "/" .. model.id, value)
    if not ok then
        log(ERR, "edge: estimate: could not store ", what, " of ", model.id, ": ", err)
    end
end


-- Tokens of the prompt. Never more than the engine's context: an image is many bytes and few tokens.
function _M.prompt(state)
    local model = state.model
    local tokens = ceil(state.body_size / learned(model).bytes)
    return model.longest and min(tokens, model.longest) or tokens
end


-- Tokens of all answers that a request asks for.
function _M.answers(state)
    if not state.route.generates then
        return 0
    end
    local each = min(state.max_tokens or ceil(learned(state.model).answer), ANSWER_CAP)
    return each * state.weight
end


-- Tokens that a request will take in the KV cache: the prompt, and the answers as long as they usually
-- get. Most clients allow far more than they use.
function _M.cache(state)
    local prompt = _M.prompt(state)
    if not state.route.generates then
        return prompt + BLOCK
    end
    local known = learned(state.model)
    local limit = state.max_tokens
    local each = limit and limit * min(1, known.part + PART_MARGIN) or MORE * known.answer
    local tokens = prompt + (ceil(each) + BLOCK) * state.weight
    local longest = state.model.longest
    return longest and min(tokens, longest * state.weight) or tokens
end


-- What is known (bytes, answer or part) moves towards `value`, `heft` times as far as usual.
local function move(model, known, what, value, heft)
    local seen = known.seen[what] + 1
    known.seen[what] = seen
    known[what] = known[what] + min(0.5, heft * max(SHARE, 1 / (seen + 1))) * (value - known[what])
    share(model, known, what)
end


-- Learns from what an engine has counted for a request.
function _M.learn(state, prompt_tokens, completion_tokens)
    local model = state.model
    local known = learned(model)
    if prompt_tokens and prompt_tokens > 0 and state.body_size > 0 then
        -- Long prompts count for more: they are what fills limits and caches, and short ones are mostly
        -- JSON and chat template.
        local usual = known.prompt or prompt_tokens
        known.prompt = usual + SHARE * (prompt_tokens - usual)
        move(model, known, "bytes", state.body_size / prompt_tokens, prompt_tokens / known.prompt)
    end
    if not completion_tokens then
        return
    end
    local each, limit = completion_tokens / state.weight, state.max_tokens
    if not limit then
        move(model, known, "answer", each, 1)

    elseif limit > 0 then
        move(model, known, "part", min(1, each / limit), 1)
    end
end


return _M
