-- Which of the backends that can take a request gets it. Pure: numbers in, an index out.

local _M = {}


-- The index of the smallest of loads[1..n]. Ties go to the first one at or after `turn`, so that an
-- idle fleet spreads.
function _M.least_loaded(loads, n, turn)
    local best = turn % n + 1
    local least = loads[best]
    local index = best
    for _ = 2, n do
        index = index % n + 1
        if loads[index] < least then
            best, least = index, loads[index]
        end
    end
    return best
end


function _M.round_robin(n, turn)
    return turn % n + 1
end


return _M
