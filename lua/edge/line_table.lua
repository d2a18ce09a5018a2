-- The table of one line of waiting requests (lines.lua): for each class a list of tickets, and what it is
-- called in the dictionary. Pure.

local fair = require "edge.fair"

local CLASSES = fair.CLASSES


local _M = {}


-- The name of the line in which a request stands: that of its model, or one for those that only some
-- backends can take.
function _M.name(state)
    if state.pinned then
        return "backend/" .. state.pinned
    end
    local pool = state.rule and state.rule.pool
    return (pool and "pool/" .. pool .. "/" or "")
        .. (state.reported and "adapter/" .. state.name .. "/" or "model/") .. state.model.id
end


-- Where it is counted that a model may have room again.
function _M.freed(model_id)
    return "freed:" .. model_id
end


-- `shared`: whether requests of other edges stand in it too.
function _M.build(model_id, name, shared)
    local line = {
        model = model_id,
        name = name,
        last = "last:" .. name,
        turn = "turn:" .. name,
        freed = _M.freed(model_id),
        -- Of other edges' first tickets: grows when they change; when Redis told them last.
        changed = shared and "changed:" .. name,
        seen = shared and "seen:" .. name,
    }
    for class = 1, CLASSES do
        line[class] = {
            first = "first:" .. name .. ":" .. class .. ":",    -- and a worker's pid
            virtual = "virtual:" .. name .. ":" .. class,
            finish = "finish:" .. name .. ":" .. class .. ":",  -- and a key's name
            others = shared and "others:" .. name .. ":" .. class,
            number = class,
        }
    end
    return line
end


return _M
