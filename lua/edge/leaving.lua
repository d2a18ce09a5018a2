-- Backends that an earlier fleet had and this one has not, or has at another address, while requests
-- still run there. They get nothing new; whoever wants to end such an engine reads here when it is empty.

local cjson = require "cjson.safe"
local fleet_build = require "edge.fleet_build"
local slots = require "edge.slots"

local concat = table.concat
local ipairs = ipairs
local log = ngx.log
local pairs = pairs
local ERR = ngx.ERR
local WARN = ngx.WARN

local dict = ngx.shared.edge_fleet

local KEY = "leaving"
-- So many are remembered, the newest.
local MOST = 4096


local _M = {}


local function read()
    local text = dict:get(KEY)
    return text and cjson.decode(text) or {}
end


-- By hand: Debian's cjson writes an empty table as {}.
local function write(entries)
    local parts, first = {}, math.max(1, #entries - MOST + 1)
    if first > 1 then
        log(WARN, "edge: leaving: more than ", MOST, " backends; the oldest are forgotten")
    end
    for i = first, #entries do
        parts[#parts + 1] = cjson.encode(entries[i])
    end
    local ok, err = dict:safe_set(KEY, "[" .. concat(parts, ",") .. "]")
    if not ok then
        log(ERR, "edge: leaving: could not store what has left the fleet: ", err)
    end
end


local function keys_of(fleet)
    local keys = {}
    for _, backend in pairs(fleet.backends) do
        keys[backend.state_key] = true
    end
    return keys
end


-- A fleet takes the place of another one: `before` is the old text (nil at the start), `fleet` the new
-- tables.
function _M.note(before, fleet)
    local stays, entries = keys_of(fleet), {}
    for _, entry in ipairs(read()) do
        if not stays[entry.key] then
            if slots.held(entry.key) ~= 0 then
                entries[#entries + 1] = entry

            else
                -- Nobody has it in his tables since the change before this one.
                slots.forget(entry.key)
            end
        end
    end
    local old = before and cjson.decode(before) or { backends = {} }
    for id, given in pairs(old.backends) do
        local key = fleet_build.state_key(id, given)
        -- Empty ones too: a request may be taking its slot at this moment.
        if not stays[key] then
            entries[#entries + 1] = {
                id = id, model = given.model, address = fleet_build.address(given), key = key,
            }
        end
    end
    write(entries)
end


-- Those with sequences in flight: id, model, address, in_flight.
function _M.list(fleet)
    local entries, found = read(), {}
    if #entries == 0 then
        return found
    end
    local stays = keys_of(fleet)
    for _, entry in ipairs(entries) do
        local in_flight = slots.held(entry.key)
        if in_flight > 0 and not stays[entry.key] then
            found[#found + 1] = {
                id = entry.id, model = entry.model, address = entry.address, in_flight = in_flight,
            }
        end
    end
    return found
end


return _M
