-- UTF-8 as RFC 3629 has it. Pure.

local find = string.find
local gsub = string.gsub
local ipairs = ipairs
local match = string.match
local sub = string.sub


local _M = {}

-- One character (or a run of ASCII).
local CHARACTER = {
    "^[%z\1-\127]+()",
    "^[\194-\223][\128-\191]()",
    "^\224[\160-\191][\128-\191]()",
    "^[\225-\236\238\239][\128-\191][\128-\191]()",
    "^\237[\128-\159][\128-\191]()",
    "^\240[\144-\191][\128-\191][\128-\191]()",
    "^[\241-\243][\128-\191][\128-\191][\128-\191]()",
    "^\244[\128-\143][\128-\191][\128-\191]()",
}


function _M.valid(text)
    if not find(text, "[\128-\255]") then
        return true
    end
    local p = 1
    while p <= #text do
        local after
        for _, pattern in ipairs(CHARACTER) do
            after = after or match(text, pattern, p)
        end
        if not after then
            return false
        end
        p = after
    end
    return true
end


-- A text that can stand in JSON: what is not UTF-8 has its bytes above 127 replaced by "?".
function _M.clean(text)
    return _M.valid(text) and text or (gsub(text, "[\128-\255]", "?"))
end


-- At most `limit` bytes, with "..." where something was cut, never in the middle of a character.
function _M.clip(text, limit)
    if #text <= limit then
        return text
    end
    return gsub(sub(text, 1, limit), "[\192-\255][\128-\191]*$", "") .. "..."
end


return _M
