-- What limits have counted so far, in Redis, for several edges: the same functions as limit_store.lua,
-- which counts instead while Redis does not answer. One round trip for all rules of a request; what it
-- used is settled afterwards, by a timer, in batches that are sent until Redis has taken them.

local leases = require "edge.leases"
local lending = require "edge.lending"
local limit_rules = require "edge.limit_rules"
local limit_store = require "edge.limit_store"
local redis = require "edge.redis"
local scripts = require "edge.limit_scripts"
local shared_state = require "edge.shared_state"

local floor = math.floor
local log = ngx.log
local ERR = ngx.ERR
local max = math.max
local now = ngx.now
local remove = table.remove
local sleep = ngx.sleep
local timer_at = ngx.timer.at
local tonumber = tonumber
local worker_pid = ngx.worker.pid

local spent_dict = ngx.shared.edge_budgets

local budget_key = limit_store.budget_key
local KEEP = limit_store.KEEP
local MINUTE = limit_rules.MINUTE
-- Corrections that wait to be sent: how many in one call, and how many at all in a worker.
local BATCH, MOST = 100, 50000
-- Seconds in which corrections gather, between tries, and after which a worker that is to end gives up.
local GATHER, PAUSE, GIVE_UP = 0.01, 0.25, 60


local _M = {}

-- What was used and Redis does not know yet: {key, amount, mark, how long it is kept}, oldest first.
local unsettled_cache = {}
local sending, batches, overflowed = false, 0, false


-- Without Redis: this edge's own counts, or nothing at all.
local function reserve_without(taken)
    if redis.options().on_error == "refuse" then
        taken.refused = 0
        return
    end
    taken.fallback, taken.share = true, shared_state.edges()
    for i = 1, #taken.rules do
        local rule = taken.rules[i]
        if rule.kind == "concurrent" then
            lending.register(rule)
        end
    end
    limit_store.reserve(taken)
end


local function take_places(taken)
    local rules = taken.rules
    for i = 1, #rules do
        local rule = rules[i]
        if rule.kind == "concurrent" then
            if not leases.take(rule, 1) then
                limit_store.release(taken)
                taken.refused = i
                return false
            end
            taken.places = taken.places + 1
        end
    end
    return true
end


-- Where a rule is counted.
local function key_of(rule, time)
    if rule.kind == "budget" then
        return shared_state.key(budget_key(rule, time))
    end
    local key = rule.shared_key
    if not key then
        key = shared_state.key(rule.name)
        rule.shared_key = key
    end
    return key
end


-- The arguments of scripts.reserve, and the number of rules that count there. `share`: 1, or 0 to take
-- nothing and only learn how they stand.
local function question(taken, share)
    local rules, args, n = taken.rules, { "", "", 0 }, 0
    for i = 1, #rules do
        if rules[i].kind ~= "concurrent" then
            n = n + 1
            args[3 + n] = key_of(rules[i], taken.at)
        end
    end
    args[3] = n
    local at = 3 + n
    for i = 1, #rules do
        local rule = rules[i]
        local cost = (rule.unit == "tokens" and taken.tokens or 1) * share
        if rule.kind == "rate" then
            args[at + 1], args[at + 2], args[at + 3] = cost * rule.each, MINUTE, 0
            at = at + 3

        elseif rule.kind == "budget" then
            args[at + 1], args[at + 2], args[at + 3] = cost, rule.limit, KEEP[rule.period]
            at = at + 3
        end
    end
    return args, n
end


-- Keeps what Redis has answered: where each rule stands, or which had no room.
local function read_answer(taken, reply)
    local refused, time = reply[1], tonumber(reply[3])
    local n = 0
    taken.left = time
    for i = 1, #taken.rules do
        local rule = taken.rules[i]
        if rule.kind ~= "concurrent" then
            n = n + 1
            taken[i] = tonumber(reply[3 + n])
            if n == refused then
                taken.refused = i
                taken.wait = rule.kind == "budget" and limit_store.left_of(rule, taken.at)
                    or tonumber(reply[2])
            end
            if rule.kind == "budget" then
                -- For a Redis that begins anew, and for a time without it.
                spent_dict:safe_set(budget_key(rule, taken.at), taken[i], KEEP[rule.period])
            end
        end
    end
    taken.held = refused == 0
end


-- There was no place: how the other rules stand, for the headers that tell of them.
local function look(taken)
    local args, n = question(taken, 0)
    local reply = n > 0 and redis.eval(scripts.reserve, args)
    if reply then
        local refused, wait = taken.refused, taken.wait
        read_answer(taken, reply)
        taken.refused, taken.wait, taken.held = refused, wait, false
    end
end


function _M.reserve(taken)
    if not redis.usable() then
        return reserve_without(taken)
    end
    if not take_places(taken) then
        if redis.usable() then
            return look(taken)
        end
        taken.refused = false
        return reserve_without(taken)
    end
    local args, n = question(taken, 1)
    if n == 0 then
        taken.held = true
        return
    end
    local reply = redis.eval(scripts.reserve, args)
    if not reply then
        limit_store.release(taken)
        return reserve_without(taken)
    end
    read_answer(taken, reply)
    if taken.refused then
        limit_store.release(taken)
    end
end


_M.release = limit_store.release


local function send_batch()
    local n = math.min(#unsettled_cache, BATCH)
    local batch = shared_state.key("settled/" .. shared_state.name() .. "/" .. worker_pid() .. "/" .. batches)
    local args = { "", "", n + 1, batch }
    for i = 1, n do
        local item, at = unsettled_cache[i], 4 + n + 3 * i - 2
        args[4 + i] = item[1]
        args[at], args[at + 1], args[at + 2] = item[2], item[3], item[4]
    end
    if not redis.eval(scripts.settle, args) then
        return false
    end
    batches = batches + 1
    local left = {}
    for i = n + 1, #unsettled_cache do
        left[i - n] = unsettled_cache[i]
    end
    unsettled_cache = left
    return true
end


-- Sends what there is, however long Redis needs; a worker that is to end gives up some time.
local function send_all()
    local give_up
    sleep(GATHER)
    while #unsettled_cache > 0 do
        if not (redis.usable() and send_batch()) then
            give_up = give_up or ngx.worker.exiting() and now() + GIVE_UP
            if give_up and now() > give_up then
                log(ERR, "edge: limits: Redis was never told of ", #unsettled_cache, " corrections")
                break
            end
            sleep(PAUSE)
        end
    end
    sending = false
end


-- Cosockets do not work where requests end.
local function start_sending()
    if sending then
        return
    end
    local ok, err = timer_at(0, send_all)
    if not ok then
        log(ERR, "edge: limits: could not settle with Redis: ", err)
        return
    end
    sending = true
end


local function push(rule, amount, mark, taken_at)
    if #unsettled_cache >= MOST then
        remove(unsettled_cache, 1)
        if not overflowed then
            overflowed = true
            log(ERR, "edge: limits: more than ", MOST, " corrections wait for Redis; the oldest are lost")
        end
    end
    local budget = rule.kind == "budget"
    unsettled_cache[#unsettled_cache + 1] = {
        key_of(rule, taken_at), budget and amount or amount * rule.each, budget and 0 or mark,
        budget and KEEP[rule.period] or 0,
    }
end


-- What was served without Redis counts for its budgets all the same; rates are over by then.
local function settle_fallback(taken, used, free, time)
    limit_store.settle(taken, used, free, time)
    for i = 1, #taken.rules do
        if taken.rules[i].kind == "budget" and used > 0 then
            push(taken.rules[i], -used, 0, taken.at)
        end
    end
end


function _M.settle(taken, used, free, time)
    if taken.fallback then
        settle_fallback(taken, used, free, time)

    elseif taken.held then
        for i = 1, #taken.rules do
            local rule = taken.rules[i]
            local amount = rule.unit == "tokens" and taken.tokens - used or free and 1 or 0
            if rule.kind ~= "concurrent" and amount ~= 0 then
                push(rule, amount, taken[i], taken.at)
            end
        end
    end
    if #unsettled_cache > 0 then
        start_sending()
    end
end


function _M.left(taken, i, time)
    local rule, value = taken.rules[i], taken[i]
    if taken.fallback or not value then
        return limit_store.left(taken, i, time)
    end
    if rule.kind == "budget" then
        return max(rule.limit - value, 0), limit_store.left_of(rule, time)
    end
    local ahead = max(value - taken.left, 0)
    return max(floor((MINUTE - ahead) / rule.each + 1e-6), 0), ahead
end


return _M
