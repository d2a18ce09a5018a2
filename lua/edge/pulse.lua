-- What a worker's own requests tell of the engines: when bytes last came, and how often an engine
-- failed. Kept in this worker's tables, because the hot path has no time for a dictionary, and
-- published by the worker's timer for the one that probes.

local states = require "edge.states"

local exiting = ngx.worker.exiting
local log = ngx.log
local pairs = pairs
local ERR = ngx.ERR

local dict = ngx.shared.edge_state


local _M = {}

-- By the engine's key, so that a running request and a newer fleet speak of the same table.
local pulses_cache = {}


-- The pulse of an engine: `heard` (time of the last bytes that were no comment), `faults`.
function _M.of(state_key)
    local pulse = pulses_cache[state_key]
    if not pulse then
        pulse = { heard = 0, faults = 0, published = 0 }
        pulses_cache[state_key] = pulse
    end
    return pulse
end


-- Forgets engines that are in the fleet no more.
function _M.keep(fleet)
    local kept = {}
    for _, backend in pairs(fleet.backends) do
        kept[backend.state_key] = pulses_cache[backend.state_key]
    end
    pulses_cache = kept
end


local function publish(key, pulse)
    if pulse.heard > pulse.published then
        pulse.published = pulse.heard
        -- Another worker may have heard later; by less than a tick, which does not matter.
        states.set("heard:" .. key, pulse.heard)
    end
    if pulse.faults > 0 then
        local ok, err = dict:incr("faults:" .. key, pulse.faults, 0)
        if ok then
            pulse.faults = 0

        else
            log(ERR, "edge: pulse: could not count faults: ", err)
        end
    end
end


function _M.publish()
    for key, pulse in pairs(pulses_cache) do
        publish(key, pulse)
    end
end


-- An engine's fault: an error answer, a broken stream. A draining worker has no timer: it tells at
-- once.
function _M.fault(pulse, state_key)
    pulse.faults = pulse.faults + 1
    if exiting() then
        publish(state_key, pulse)
    end
end


-- When any worker last heard the engine, and its faults since the last call.
function _M.take(backend)
    local faults = dict:get("faults:" .. backend.state_key) or 0
    if faults > 0 then
        dict:incr("faults:" .. backend.state_key, -faults)
    end
    return dict:get("heard:" .. backend.state_key) or 0, faults
end


return _M
