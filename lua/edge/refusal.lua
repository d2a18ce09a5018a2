-- What a request hears that gets no backend, at once or after it has waited.

local pace = require "edge.pace"
local places = require "edge.places"

local floor = math.floor


local _M = {}


-- Why there is no backend for a request, as openai.refuse takes it.
function _M.of(state, reason)
    local model = state.model
    local pool = state.rule and state.rule.pool
    local whose = "model '" .. model.id .. "'" .. (pool and " in pool '" .. pool .. "'" or "")
    if reason == "crowded" then
        return 429, "queue_full", "Every engine of " .. whose .. " is at its limit, and "
            .. model.waiting.limit .. " requests are waiting already. Try again later.",
            { retry_after = pace.retry_after(model.id, places.waiting(model), model.wait) }

    elseif reason == "share" then
        return 429, "queue_full", "Every engine of " .. whose .. " is at its limit, and the key '"
            .. state.key.name .. "' has as many requests waiting as one key may. Try again later.",
            { retry_after = pace.retry_after(model.id, places.waiting(model), model.wait) }

    elseif reason == "late" then
        return 429, "queue_timeout", "Every engine of " .. whose .. " was at its limit for "
            .. floor(state.waited * 10 + 0.5) / 10 .. " s. Nothing was started; try again later.",
            { retry_after = pace.retry_after(model.id, places.waiting(model) + 1, model.wait) }

    elseif reason == "state" then
        return 503, "state_unavailable", "Redis, in which the slots of model '" .. model.id
            .. "' are counted, does not answer. Nothing was started; try again shortly.", { retry_after = 1 }

    elseif reason == "cancelled" then
        return 503, "cancelled", "An operator has ended this request while it waited. Nothing was started.",
            { no_retry = true }

    elseif reason == "gone" then
        return 404, "model_not_found", "The model '" .. model.id
            .. "' was removed while the request waited. GET /v1/models lists those there are.",
            { param = "model" }
    end
    return 503, "no_backend_ready", "No engine of " .. whose
        .. " is ready. It may still be starting; try again shortly.", { retry_after = 5 }
end


return _M
