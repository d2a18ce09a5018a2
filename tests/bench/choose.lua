-- Inside nginx: what it costs to choose among many backends, for prompts of a given size. Answers with
-- JSON: for each policy and kind of prompt the median and worst CPU microseconds per request, slot
-- included, body scan apart (the edge scans bodies whatever the policy).

local cjson = require "cjson"
local fleet = require "edge.fleet"
local json_scan = require "edge.json_scan"
local pick = require "edge.pick"
local slots = require "edge.slots"
local traits = require "edge.traits"

local clock = os.clock

local BACKENDS = tonumber(ngx.var.arg_backends)
local BYTES = tonumber(ngx.var.arg_bytes)
local ROUNDS = tonumber(ngx.var.arg_rounds)

local WANTED = { model = true }
for _, name in ipairs(traits.WANTED) do
    WANTED[name] = "last"
end


local function fleet_of(policy)
    local backends, ids = {}, {}
    for i = 1, BACKENDS do
        ids[i] = "m-" .. i
        backends[ids[i]] = { model = "m", host = "127.0.0.1", port = i, scheme = "http", limit = 1000,
                             addresses = { "127.0.0.1" }, name = "m", served = { "m" } }
    end
    local model = { policy = policy, connect_ms = 1000, send_ms = 1000, read_ms = 1000, max_waiting = 256,
                    wait_ms = 1000, names = { "m" }, loras = {}, backends = ids }
    assert(fleet.put(cjson.encode({ version = 1, names = { m = "m" }, models = { m = model },
                                    backends = backends })))
    return fleet.current().models.m
end


-- One long message, or a conversation of many; nobody has sent it before.
local function messages_of(kind, round)
    local text = ("A signal box decides who goes. "):rep(kind == "turns" and 16 or BYTES / 31)
    local messages = { '{"role": "user", "content": "' .. round .. text .. '"}' }
    for i = 2, kind == "turns" and math.floor(BYTES / 540) or 1 do
        messages[i] = '{"role": "user", "content": "' .. i .. text .. '"}'
    end
    return messages
end


local starts, stops = {}, {}


-- CPU seconds for one request from its scanned body to its slot.
local function cost(model, messages, round)
    local body = '{"model": "m", "user": "somebody ' .. round .. '", "messages": ['
        .. table.concat(messages, ", ") .. "]}"
    assert(json_scan.scan(body, WANTED, starts, stops, traits.elements))
    local state = { model = model, name = "m" }
    local begin = clock()
    traits.read(state, body, starts, stops)
    local backend = pick.choose(state)
    assert(slots.take(backend, state.weight))
    local took = clock() - begin
    -- Most slots are given back: loads stay near zero and uneven.
    if round % 7 ~= 0 then
        slots.release(backend, state.weight)
    end
    return took
end


local function summary(times)
    table.sort(times)
    return { median_us = times[math.floor(#times / 2) + 1] * 1e6,
             p99_us = times[math.ceil(#times * 0.99)] * 1e6, worst_us = times[#times] * 1e6 }
end


local answer = {}
for _, policy in ipairs({ "prefix", "least_loaded", "session", "random_two", "round_robin" }) do
    local model = fleet_of(policy)
    for _, kind in ipairs({ "document", "turns" }) do
        local first, second = {}, {}
        -- The compiler warms up on the first ones, as it does in a worker that has run for a while.
        for round = 1 - math.floor(ROUNDS / 4), ROUNDS do
            local messages = messages_of(kind, round)
            local new = cost(model, messages, round)
            messages[#messages + 1] = '{"role": "user", "content": "more"}'
            local known = cost(model, messages, round)
            if round > 0 then
                first[round], second[round] = new, known
            end
        end
        answer[policy .. " " .. kind .. ", new"] = summary(first)
        answer[policy .. " " .. kind .. ", next turn"] = summary(second)
    end
end
ngx.print(cjson.encode(answer))
