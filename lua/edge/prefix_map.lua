-- Which backends have seen which beginning of a prompt: a dictionary from the keys of a chain
-- (prefix.lua) to the tags of backends, shared by the workers and kept over reloads. It is a guess: an
-- engine may have dropped what it once had. When it is full, the beginnings not seen for longest go.

local policy = require "edge.policy"

local find = string.find
local max = math.max
local sub = string.sub
local within = policy.within
local MARGIN_OWN = policy.MARGIN_OWN
local MARGIN_SHARED = policy.MARGIN_SHARED

local dict = ngx.shared.edge_prefix

local TAG_BYTES = 4
-- So many backends are remembered for a beginning, the newest ones: an entry stays in one small piece
-- of the dictionary's memory.
local MAX_HOLDERS = 10
-- Marks the end of a whole prompt: who goes on from there continues a conversation.
local WHOLE = 1


local _M = {}

local holders_cache, flags_cache = {}, {}


local function holds(holders, tag)
    local at = find(holders, tag, 1, true)
    while at and (at - 1) % TAG_BYTES ~= 0 do
        at = find(holders, tag, at + 1, true)
    end
    return at ~= nil
end


-- The candidate with the least score among the holders, by index, or nil. Candidates know their index
-- (`at`), which is stale in backends that are none: down, tried, of another tier.
local function best_of(holders, by_tag, candidates, n, scores)
    local best, least = nil, math.huge
    for first = 1, #holders, TAG_BYTES do
        local backend = by_tag[sub(holders, first, first + TAG_BYTES - 1)]
        local index = backend and backend.at
        if index and index <= n and candidates[index] == backend and scores[index] < least then
            best, least = index, scores[index]
        end
    end
    return best
end


-- Notes that a backend now has the beginnings longer than `known`.
local function learn(chain, known, tag)
    for i = chain.n, max(known, chain.n > chain.small and chain.small or chain.n - 1) + 1, -1 do
        local holders = holders_cache[i]
        if not holds(holders, tag) then
            local flag = (i == chain.n or flags_cache[i] == WHOLE) and WHOLE or 0
            dict:set(chain[2 * i - 1], sub(holders .. tag, -MAX_HOLDERS * TAG_BYTES), 0, flag)
        end
    end
end


-- The index, of candidates[1..n], for a prompt: the holder of its longest known beginning whose score
-- is close enough to the least, else the candidate at `least`. The choice is remembered. Also how many
-- bytes of the prompt the chosen one has probably seen before, and how many any backend has.
function _M.choose(chain, by_tag, candidates, n, scores, least)
    local chosen, known, shared = least, 0, 0
    local least_score = scores[least]
    for i = chain.n, 1, -1 do
        local holders, flags = dict:get(chain[2 * i - 1])
        holders_cache[i], flags_cache[i] = holders or "", flags
        if holders and shared == 0 then
            shared = i
        end
        local index = holders and best_of(holders, by_tag, candidates, n, scores)
        local margin = flags == WHOLE and MARGIN_OWN or MARGIN_SHARED
        if index and within(scores[index], least_score, margin) then
            chosen, known = index, i
            break
        end
    end
    learn(chain, known, candidates[chosen].tag)
    return chosen, chain[2 * known] or 0, chain[2 * shared] or 0
end


-- Whether a prompt with this opening (prefix.lua) has come before, whatever its cache_salt. Now it has.
function _M.came_before(opening)
    local _, err = dict:add(opening, "")
    return err == "exists"
end


return _M
