-- Writes Prometheus text. Pure.

local concat = table.concat
local format = string.format
local gsub = string.gsub


local _M = {}

local ESCAPES = { ["\\"] = "\\\\", ["\""] = "\\\"", ["\n"] = "\\n" }


-- The text {a="1",b="2"} for a list of name, value, name, value; "" when there is none.
function _M.labels(...)
    local parts = {}
    local given = { ... }
    for i = 1, #given, 2 do
        parts[#parts + 1] = given[i] .. '="' .. gsub(given[i + 1], '[\\"\n]', ESCAPES) .. '"'
    end
    return #parts > 0 and "{" .. concat(parts, ",") .. "}" or ""
end


-- A number as Prometheus reads it: integers without a point.
function _M.number(value)
    if value == math.floor(value) and value < 1e15 and value > -1e15 then
        return format("%d", value)
    end
    return format("%.14g", value)
end


-- Appends HELP and TYPE of a family to `out`.
function _M.family(out, name, kind, help)
    out[#out + 1] = "# HELP " .. name .. " " .. help .. "\n# TYPE " .. name .. " " .. kind .. "\n"
end


function _M.sample(out, name, labels, value)
    out[#out + 1] = name .. labels .. " " .. _M.number(value) .. "\n"
end


-- A histogram: `bounds` in seconds, counts[i] of observations in bucket i alone (#bounds + 1 of
-- them), their sum.
function _M.histogram(out, name, label_pairs, bounds, counts, sum)
    local total = 0
    local with = {}
    for i = 1, #label_pairs do
        with[i] = label_pairs[i]
    end
    with[#with + 1] = "le"
    local at = #with + 1
    for i = 1, #bounds + 1 do
        total = total + (counts[i] or 0)
        with[at] = bounds[i] and _M.number(bounds[i]) or "+Inf"
        _M.sample(out, name .. "_bucket", _M.labels(unpack(with)), total)
    end
    local labels = _M.labels(unpack(label_pairs))
    _M.sample(out, name .. "_sum", labels, sum)
    _M.sample(out, name .. "_count", labels, total)
end


return _M
