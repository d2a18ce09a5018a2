-- The fleet as this worker sees it: models, names and backends, with what the hot path needs
-- prepared. The text of fleet.json lies in a dictionary; each worker builds its own tables from it
-- when the dictionary's counter has moved.

local fleet_build = require "edge.fleet_build"
local fleet_check = require "edge.fleet_check"
local leaving = require "edge.leaving"
local pulse = require "edge.pulse"
local slots = require "edge.slots"
local states = require "edge.states"

local log = ngx.log
local ERR = ngx.ERR
local config_prefix = ngx.config.prefix

local dict = ngx.shared.edge_fleet

-- One counter for both the fleet and the states of its backends: one look-up per request tells that
-- nothing moved.
local TICK = "tick"
local FLEET_TICK = "fleet_tick"
local JSON = "json"


local _M = {}

-- This worker's tables and the counters they were built at.
local snapshot_cache
local tick_cache
local fleet_tick_cache


-- The fleet as it is now. One dictionary look-up when nothing has changed.
function _M.current()
    local tick = dict:get(TICK)
    if tick == tick_cache then
        return snapshot_cache
    end

    local fleet_tick = dict:get(FLEET_TICK)
    if fleet_tick ~= fleet_tick_cache then
        snapshot_cache = fleet_build.build(dict:get(JSON))
        fleet_tick_cache = fleet_tick
        pulse.keep(snapshot_cache)
        slots.keep(snapshot_cache)
    end
    states.refresh(snapshot_cache)
    tick_cache = tick
    return snapshot_cache
end


-- Tells all workers that a state or an address has changed.
function _M.touch()
    local _, err = dict:incr(TICK, 1, 0)
    if err then
        log(ERR, "edge: fleet: could not announce a change: ", err)
    end
end


-- Makes all workers read the engine's key again when its file has changed.
function _M.check_key(backend)
    local key = backend.key_file and fleet_build.read_key(backend)
    if key and backend.authorization ~= "Bearer " .. key then
        dict:incr(FLEET_TICK, 1, 0)
        _M.touch()
    end
end


-- Takes a new fleet.json. Returns its version and whether it asks for API keys, or nil and the reason;
-- then nothing has changed.
function _M.put(text)
    local problem = fleet_check.check(text)
    if problem then
        return nil, problem
    end
    -- Whatever is wrong with it beyond that shows here, not in the first request.
    local ok, built = pcall(fleet_build.build, text)
    if not ok then
        return nil, "fleet.json cannot be used: " .. tostring(built)
    end
    if built.default_model and not built.models[built.default_model] then
        return nil, "default_model names an unknown model"
    end
    local before = dict:get(JSON)
    local err
    ok, err = dict:safe_set(JSON, text)
    if not ok then
        return nil, "could not store fleet.json: " .. err
    end
    -- Before the workers hear of it: nothing that runs may be out of sight in between.
    leaving.note(before, built)
    dict:incr(FLEET_TICK, 1, 0)
    _M.touch()
    return built.version, built.keys
end


-- In the master, at start and at every reload: conf/fleet.json is the truth, no control plane is
-- needed. Returns whether it asks for API keys.
function _M.init()
    local path = config_prefix() .. "conf/fleet.json"
    local file, err = io.open(path, "r")
    if not file then
        error("could not read fleet.json: " .. err)
    end
    local text = file:read("*a")
    file:close()

    local version, asks = _M.put(text)
    if not version then
        error(path .. ": " .. asks)
    end
    return asks
end


return _M
