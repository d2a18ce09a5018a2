-- Reads the few vLLM metrics that the edge needs from Prometheus text. Pure. A metric that is not
-- there is nil, never 0: a zero is a measurement.

local byte = string.byte
local find = string.find
local match = string.match
local sub = string.sub
local tonumber = tonumber

-- More than this is no engine's /metrics.
local MAX_BYTES = 4 * 1048576
local MAX_LINES = 50000

-- Prometheus name -> our name, and how good a source it is: vLLM has renamed some, and a version
-- may have both. Ratios are averaged over the engines of one server, the others summed.
local WANTED = {
    ["vllm:num_requests_running"] = { "running", 1 },
    ["vllm:num_requests_waiting"] = { "waiting", 1 },
    ["vllm:kv_cache_usage_perc"] = { "kv_usage", 2, true },
    ["vllm:gpu_cache_usage_perc"] = { "kv_usage", 1, true },
    ["vllm:prefix_cache_queries_total"] = { "prefix_queries", 3 },
    ["vllm:gpu_prefix_cache_queries_total"] = { "prefix_queries", 2 },
    ["vllm:gpu_prefix_cache_queries"] = { "prefix_queries", 1 },
    ["vllm:prefix_cache_hits_total"] = { "prefix_hits", 3 },
    ["vllm:gpu_prefix_cache_hits_total"] = { "prefix_hits", 2 },
    ["vllm:gpu_prefix_cache_hits"] = { "prefix_hits", 1 },
    ["vllm:prompt_tokens_total"] = { "prompt_tokens", 1 },
    ["vllm:generation_tokens_total"] = { "generation_tokens", 1 },
    ["vllm:num_preemptions_total"] = { "preemptions", 1 },
    -- A histogram with one observation per scheduler step: it moves during a long prefill too.
    ["vllm:iteration_tokens_total_count"] = { "iterations", 1 },
}
-- Its labels are what it says; one per engine of a server.
local CACHE_INFO = "vllm:cache_config_info"
local CACHE_RULE = { "kv_tokens", 1 }
local SPACE, BRACE = 32, 123


local _M = {}


-- The value at the end of a sample's line: labels may hold spaces and braces inside quotes.
local function value_of(line, after)
    if byte(line, after) == BRACE then
        -- The last brace: a label's value may hold one too, a number never does.
        local text = match(line, "^.*}%s+(%S+)", after)
        return text and tonumber(text)
    end
    local text = match(line, "^%s+(%S+)", after)
    return text and tonumber(text)
end


local function take(found, rule, value)
    local name, rank = rule[1], rule[2]
    local entry = found[name]
    if not entry or entry.rank < rank then
        found[name] = { rank = rank, sum = value, n = 1, mean = rule[3] }

    elseif entry.rank == rank then
        entry.sum = entry.sum + value
        entry.n = entry.n + 1
    end
end


-- The size of the KV cache in tokens, from the labels of vllm:cache_config_info: newer versions say it,
-- older ones say how many blocks there are; nil when the line says neither.
local function cache_size(line)
    local tokens = tonumber(match(line, '[{,]kv_cache_size_tokens="(%d+)"'))
    if tokens then
        return tokens
    end
    local blocks = tonumber(match(line, '[{,]num_gpu_blocks="(%d+)"'))
    local block = tonumber(match(line, '[{,]block_size="(%d+)"'))
    return blocks and block and blocks * block
end


-- Table with running, waiting, kv_usage (0..1), kv_tokens (the size of the KV cache), preemptions,
-- prefix_queries, prefix_hits, prompt_tokens, generation_tokens, iterations, and `tokens`: the sum of the
-- last three that are there, which rises whenever the engine gets on.
function _M.read(text)
    local found, lines = {}, 0
    local at, size = 1, #text
    while at <= size and at <= MAX_BYTES and lines < MAX_LINES do
        lines = lines + 1
        local stop = find(text, "\n", at, true) or size + 1
        if byte(text, at) == 118 then  -- v
            local name_end = at
            local c = byte(text, name_end)
            while c and c ~= BRACE and c ~= SPACE and name_end < stop do
                name_end = name_end + 1
                c = byte(text, name_end)
            end
            local name = sub(text, at, name_end - 1)
            local rule = WANTED[name]
            local value
            if rule then
                value = value_of(sub(text, name_end, stop - 1), 1)

            elseif name == CACHE_INFO then
                rule, value = CACHE_RULE, cache_size(sub(text, name_end, stop - 1))
            end
            -- NaN, infinity and what is below zero are no measurements.
            if value and value >= 0 and value < 1e18 then
                take(found, rule, value)
            end
        end
        at = stop + 1
    end

    local sample = {}
    for name, entry in pairs(found) do
        sample[name] = entry.mean and entry.sum / entry.n or entry.sum
    end
    if sample.prompt_tokens or sample.generation_tokens or sample.iterations then
        sample.tokens = (sample.prompt_tokens or 0) + (sample.generation_tokens or 0)
            + (sample.iterations or 0)
    end
    return sample
end


return _M
