-- What is known here of the lines of other edges: Redis says it as an answer (order_sync.lua), or as news
-- when something has changed in another edge, which one worker listens for (keeper.lua). Their first tickets
-- stand in the dictionary beside those of the workers here (firsts.lua): whoever sees one before its own does
-- not take what is free.

local counter = require "edge.counter"
local fair = require "edge.fair"
local firsts = require "edge.firsts"
local line_table = require "edge.line_table"

local concat = table.concat
local count = counter.add
local format = string.format
local gmatch = string.gmatch
local match = string.match
local now = ngx.now
local pairs = pairs
local sub = string.sub
local tonumber = tonumber

local dict = ngx.shared.edge_queue

local CLASSES = fair.CLASSES
-- News may be overtaken by an answer; older ones than what is known change nothing. By more than this (in
-- microseconds) they are not late: another Redis answers, whose clock is behind.
local CLOCK = 200000
-- What is told of a line, and the line's name.
local NEWS = "^=(" .. ("%S+ "):rep(5 + 4 * CLASSES) .. ")(.+)$"


local _M = {
    -- Seconds that a ticket counts once shown: a worker that is late must not lose its place.
    SHOWN = 0.4,
    -- So many tickets of each class are shown.
    DEPTH = 3,
}

local SHOWN = _M.SHOWN
-- Model id -> name -> line, as lines.lua has them.
local lines_cache


function _M.watch(lines)
    lines_cache = lines
end


-- Notes what other edges show of a class, as firsts.lua reads it: their first ticket, since when it is that,
-- and their third one. Whether that is new.
local function note_others(list, shown)
    local known = dict:get(list.others)
    if match(shown, "^%-") then
        dict:delete(list.others)
        return known ~= nil
    end
    local first = match(shown, "^%S+ %S+")
    local same = known and sub(known, 1, #first + 1) == first .. " "
    local since = same and match(known, "^%S+ %S+ (%S+)") or format("%.3f", now())
    local words = first .. " " .. since .. sub(shown, #first + 1)
    dict:safe_set(list.others, words, SHOWN)
    return words ~= known
end


-- What Redis says of a line: its clock, the turn, the tags served last, and for each class tag and number of
-- the first and the third ticket of other edges, or '-'. Wakes whose turn it may be.
function _M.learn(line, text)
    local words, n = {}, 0
    for word in gmatch(text, "%S+") do
        n = n + 1
        words[n] = word
    end
    local stamp, seen = tonumber(words[1]), dict:get(line.seen) or 0
    if stamp < seen and seen - stamp < CLOCK then
        return
    end
    dict:safe_set(line.seen, stamp, CLOCK / 1000000)
    dict:safe_set(line.turn, tonumber(words[2]))
    local news = false
    for class = 1, CLASSES do
        local list, served = line[class], tonumber(words[2 + class])
        if served > (dict:get(list.virtual) or 0) then
            dict:safe_set(list.virtual, served)
        end
        news = note_others(list, concat(words, " ", 2 + 4 * class, 5 + 4 * class)) or news
    end
    if news then
        count(dict, line.changed, 1)
        for class = 1, CLASSES do
            firsts.wake(line[class])
        end
    end
end


-- Another edge's line has changed: its name follows what learn takes.
function _M.hear(news)
    local text, name = match(news, NEWS)
    if not name then
        return
    end
    for _, lines in pairs(lines_cache) do
        if lines[name] then
            return _M.learn(lines[name], text)
        end
    end
    -- It waits in another worker here, which sees that it has changed.
    _M.learn(line_table.build("", name, true), text)
end


-- Whether requests wait in a line of other edges too.
function _M.contested(line)
    for class = 1, CLASSES do
        if dict:get(line[class].others) then
            return true
        end
    end
    return false
end


return _M
