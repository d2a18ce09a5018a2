-- Prints how long json_scan takes on large and hostile bodies:
--   luajit tests/fuzz/scan_speed.lua
-- Exit status 1 if one takes longer than the limit in its row.

package.path = "./lua/?.lua;" .. package.path
local json_scan = require "edge.json_scan"

local rep = string.rep

local WANTED = { model = true, stream = true, max_tokens = true, n = true, user = true,
                 stream_options = true, cache_salt = true }
local MB = 1024 * 1024


local function chat(size)
    local turn = '{"role": "user", "content": "' .. rep("A signal box decides who goes.\\n", 16)
                 .. '"}, '
    return '{"messages": [' .. rep(turn, math.ceil(size / #turn)) .. '{}], "stream": true, '
           .. '"model": "m"}'
end


local function value(text, count)
    return '{"a": [' .. rep(text, count) .. '1], "model": "m"}'
end


local rows = {
    { "10 KB chat", chat(10 * 1024), 0.01 },
    { "100 KB chat", chat(100 * 1024), 0.03 },
    { "1 MB chat", chat(MB), 0.5 },
    { "10 MB chat", chat(10 * MB), 5 },
    { "1 MB of quoted chat",
      value('{"content": "He said \\\\\\"yes\\\\\\" to it."}, ', MB / 40), 5 },
    { "10 MB image", '{"a": "' .. rep("QUJD", 10 * MB / 4) .. '", "model": "m"}', 1 },
    { "1 MB token ids", value("12345, ", MB / 7), 5 },
    { "1 MB brackets", '{"a": ' .. rep("[", MB), 30 },
    { "1 MB bracket pairs", value("[],", MB / 3), 30 },
    { "1 MB escaped quotes", '{"a": "' .. rep('\\"', MB / 2) .. '"}', 30 },
    { "1 MB backslashes", '{"a": "' .. rep("\\", MB) .. '"}', 30 },
    { "1 MB empty strings", value('"",', MB / 3), 30 },
    { "1 MB top-level keys", "{" .. rep('"abcdef":1,', MB / 11) .. '"b":1}', 30 },
    { "1 MB escaped keys", "{" .. rep('"' .. rep("\\u006d", 64) .. '":1,', 250) .. '"a": "'
                           .. rep("a", MB) .. '"}', 30 },
    { "1 MB white space", rep(" ", MB) .. "{}", 30 },
    { "1 MB one key", '{"' .. rep("\\u006d", MB / 6) .. '": 1}', 30 },
    { "1 MB one number", '{"a": ' .. rep("1", MB) .. "}", 30 },
}

local failed = false
print(string.format("%-22s %10s %10s", "body", "ms", "limit"))
for _, row in ipairs(rows) do
    local name, body, limit = row[1], row[2], row[3]
    local starts, stops = {}, {}
    local best = math.huge
    local rounds = #body > 2 * MB and 10 or 30
    local inner = #body < 200 * 1024 and 50 or 1
    for _ = 1, rounds do
        local begin = os.clock()
        for _ = 1, inner do
            json_scan.scan(body, WANTED, starts, stops)
        end
        best = math.min(best, (os.clock() - begin) * 1000 / inner)
    end
    failed = failed or best > limit
    print(string.format("%-22s %10.4f %10.2f%s", name, best, limit,
                        best > limit and "  SLOW" or ""))
end
os.exit(failed and 1 or 0)
