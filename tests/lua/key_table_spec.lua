local cjson = require "cjson.safe"
local key_table = require "edge.key_table"

local DIGEST = ("ab"):rep(32)


local function entry(changes)
    local made = { name = "alice", enabled = true, priority = "normal", weight = 1 }
    for key, value in pairs(changes or {}) do
        made[key] = value
    end
    return made
end


local function build(keys)
    return key_table.build(cjson.encode({ version = 3, keys = keys }))
end


describe("the table of keys", function()
    it("finds an entry by the start of its hash, and has the whole", function()
        local limits = { concurrent = 2 }
        local built = build({ [DIGEST] = entry({ models = { "a" }, expires = 5, limits = limits }) })
        assert.equal(3, built.version)
        assert.equal(1, built.count)
        local found = built.by_start[("\171"):rep(key_table.START)]
        assert.equal(("\171"):rep(32), found.digest)
        assert.same({ "alice", 5, { concurrent = 2 } }, { found.name, found.expires, found.limits })
    end)

    it("has no key when there is none", function()
        assert.equal(0, key_table.build('{"version": 1, "keys": {}}').count)
    end)

    it("refuses what is no keys.json, without repeating a hash", function()
        local bad = {
            "", "x", "[]", "null", "7", '{"version": 1}', '{"keys": {}}', '{"version": "1", "keys": {}}',
            '{"version": 1, "keys": {"' .. DIGEST .. '": null}}',
            '{"version": 1, "keys": {"' .. DIGEST .. '": []}}',
        }
        for _, keys in ipairs({
            { [DIGEST:sub(2)] = entry() }, { [DIGEST:upper()] = entry() },
            { ["z" .. DIGEST:sub(2)] = entry() },
            { [DIGEST] = entry({ name = "" }) }, { [DIGEST] = entry({ name = 'a"' }) },
            { [DIGEST] = entry({ name = "a b" }) }, { [DIGEST] = entry({ name = ("a"):rep(65) }) },
            { [DIGEST] = entry({ enabled = 1 }) }, { [DIGEST] = entry({ expires = "2027" }) },
            { [DIGEST] = entry({ expires = cjson.null }) }, { [DIGEST] = entry({ models = "a" }) },
            { [DIGEST] = entry({ limits = 1 }) }, { [DIGEST] = entry({ weight = "1" }) },
            { [DIGEST] = entry({ priority = 1 }) },
        }) do
            bad[#bad + 1] = cjson.encode({ version = 1, keys = keys })
        end
        for _, text in ipairs(bad) do
            local built, problem = key_table.build(text)
            assert.is_nil(built, text)
            assert.is_string(problem)
            assert.is_nil(problem:find("abab", 1, true), problem)
        end
    end)

    it("allows the models that an entry lists, or all", function()
        local found = build({ [DIGEST] = entry({ models = { "a" } }) }).by_start[("\171"):rep(16)]
        assert.is_true(key_table.allows(found, { id = "a" }))
        assert.is_false(key_table.allows(found, { id = "b" }))
        assert.is_true(key_table.allows(false, { id = "b" }))
        local free = build({ [DIGEST] = entry() }).by_start[("\171"):rep(16)]
        assert.is_true(key_table.allows(free, { id = "b" }))
    end)
end)
