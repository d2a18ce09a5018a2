-- Which engine made a stored response, and whose it is: a response of /v1/responses belongs to the key
-- that asked for it, and does not exist for any other.

local find = string.find
local log = ngx.log
local sub = string.sub
local ERR = ngx.ERR

local dict = ngx.shared.edge_responses

local TTL = 3600


local _M = {}


-- Backend and owner of what was noted as "BACKEND OWNER", or "BACKEND" when no keys were asked for.
local function parse(value)
    local at = find(value, " ", 1, true)
    if not at then
        return value, nil
    end
    return sub(value, 1, at - 1), sub(value, at + 1)
end


-- The id of the backend that made a response, if the key (false: no keys are asked for) may know of it.
function _M.backend(id, key)
    local value = dict:get(id)
    if not value then
        return nil
    end
    local backend, owner = parse(value)
    if key and owner ~= key.name then
        return nil
    end
    return backend
end


-- Notes where a response was made. Engines let clients choose the id: with one that is another key's
-- nobody gets at what that one has.
function _M.remember(id, backend, key)
    if key and dict:get(id) and not _M.backend(id, key) then
        return
    end
    local ok, err = dict:set(id, key and backend.id .. " " .. key.name or backend.id, TTL)
    if not ok then
        log(ERR, "edge: responses: could not remember a response: ", err)
    end
end


return _M
