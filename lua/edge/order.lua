-- One order for those that wait in several edges. A ticket gets its tag and number from Redis, and what
-- changes in a line here is told to the other edges (order_sync.lua). Without a Redis nothing here does
-- anything.

local news = require "edge.order_news"
local redis = require "edge.redis"
local scripts = require "edge.order_scripts"
local sync = require "edge.order_sync"

local format = string.format
local tonumber = tonumber

local dict = ngx.shared.edge_queue

-- How long a model stays pressed once another edge was short of its slots (seconds): longer than leases.lua
-- of that edge leaves between two asks.
local PRESSED = 0.25


local _M = {}


-- lines.lua gives its lines: model id -> name -> line.
_M.watch = sync.watch


-- The tag, the end and the number of a new ticket; nil when this edge is alone, or without Redis for now.
-- Yields.
function _M.ticket(line, list, finish, span, keep)
    if not redis.options() or not redis.usable() then
        return nil
    end
    local reply = redis.eval(scripts.ticket, {
        "", "", 3, sync.key(list.virtual), sync.key(finish), sync.key(line.last),
        format("%.14g", dict:get(list.virtual) or 0), dict:get(line.last) or 0, format("%.14g", span), keep,
        format("%.14g", dict:get(finish) or 0),
    })
    if not reply then
        return nil
    end
    return tonumber(reply[1]), tonumber(reply[2]), reply[3]
end


-- Another ticket of this worker stands at a place of a class, or none.
function _M.changed(line, place)
    if place <= news.DEPTH and redis.options() then
        sync.changed(line)
    end
end


-- A ticket of a class (by its number) has been served.
function _M.served(line, class, tag)
    if redis.options() then
        sync.served(line, class, tag)
    end
end


-- A ticket has left unserved.
function _M.refund(finish, span)
    if redis.options() then
        sync.refund(finish, span)
    end
end


-- Whether requests wait in a line of other edges too.
function _M.contested(line)
    return redis.options() ~= nil and news.contested(line)
end


-- Another edge is short of a model's slots: who comes new stands in line, though nobody waits here.
function _M.press(model_id)
    dict:safe_set("pressed:" .. model_id, true, PRESSED)
end


function _M.pressed(model_id)
    return redis.options() ~= nil and dict:get("pressed:" .. model_id) == true
end


return _M
