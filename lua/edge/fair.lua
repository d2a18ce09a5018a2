-- In which order waiting requests are served. Pure.
--
-- Between keys of a class: start-time fair queuing. Each ticket gets a tag when it joins; the smallest is
-- served first. A key's tags are as far apart as its requests are dear, by its weight: whoever sends
-- ten times as much stands ten times as far back, and whoever comes new stands where service is now.
--
-- Between classes: the higher first, but of eight places one goes to the lowest class that waits and
-- one to the middle one first, so that nobody starves.

local floor = math.floor
local max = math.max


local _M = {
    NAMES = { "high", "normal", "low" },
    NUMBERS = { high = 1, normal = 2, low = 3 },
    NORMAL = 2,
}

local CLASSES = #_M.NAMES
local ROUND = 8
-- The order in which classes are asked, by the turn in a round.
local USUAL = { 1, 2, 3 }
local ORDERS = {
    [3] = { 2, 1, 3 },
    [7] = { 3, 2, 1 },
}


-- The order in which the classes are asked at this turn.
function _M.order(turn)
    return ORDERS[turn % ROUND] or USUAL
end


-- The tag of a new ticket: `virtual` is the tag that was served last, `finish` where its key's tickets
-- end. Returns the tag, and where they end then.
function _M.tag(virtual, finish, cost, weight)
    local tag = max(virtual, finish)
    return tag, tag + cost / weight
end


-- Whether a ticket is before another: by tag, then by the order in which they came.
function _M.before(tag, number, other_tag, other_number)
    return tag < other_tag or tag == other_tag and number < other_number
end


local before = _M.before


-- Where in a sorted list a ticket stands, or is to stand.
function _M.place(list, ticket)
    local low, high = 1, #list + 1
    while low < high do
        local middle = floor((low + high) / 2)
        local other = list[middle]
        if before(other.tag, other.number, ticket.tag, ticket.number) then
            low = middle + 1

        else
            high = middle
        end
    end
    return low
end


-- The class of a request: what its rule or its key says, which the client may lower and never raise.
-- `rule` and `asked` are names or nil.
function _M.class(rule, key, asked)
    local class = _M.NUMBERS[rule] or _M.NUMBERS[key] or _M.NORMAL
    return max(class, _M.NUMBERS[asked] or class)
end


-- How many of a line one key may fill, so that the others find a place: twice what is free.
function _M.may_join(own, total, limit)
    return own <= 2 * (limit - total)
end


_M.CLASSES = CLASSES


return _M
