-- Counting in a shared dictionary that must not evict. Not incr with an initial value: when the
-- dictionary is full that would throw out another count.

local log = ngx.log
local ERR = ngx.ERR


local _M = {}


-- Adds to a counter, which begins at 0 and is kept for `ttl` seconds (nil: for good). Returns its new
-- value, or nil when it could not be counted, which is logged.
function _M.add(dict, key, value, ttl)
    local new, err = dict:incr(key, value)
    if not new and err == "not found" then
        dict:safe_add(key, 0, ttl or 0)
        new, err = dict:incr(key, value)
    end
    if not new then
        log(ERR, "edge: could not count ", key, ": ", err)
    end
    return new
end


return _M
