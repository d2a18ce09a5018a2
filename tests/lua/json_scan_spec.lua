local json_scan = require "edge.json_scan"

local rep = string.rep

local WANTED = { model = true, stream = true, user = true }

local starts, stops = {}, {}


-- Returns the raw values by key, or nil and the error's code.
local function scan(body)
    local ok, err, code = json_scan.scan(body, WANTED, starts, stops)
    if not ok then
        assert.is_string(err)
        return nil, code
    end
    local raw = {}
    for key, first in pairs(starts) do
        raw[key] = key == 1 and "{" or body:sub(first, stops[key])
    end
    return raw
end


local function model(body)
    assert(scan(body))
    return starts.model and json_scan.string_value(body, starts.model, stops.model)
end


local function refusal(body)
    local raw, code = scan(body)
    assert.is_nil(raw)
    return code
end


describe("json_scan.scan", function()
    it("finds the wanted members and the braces", function()
        local body = ' {"model" : "m", "other": [1], "stream":true }\n'
        assert.same({ [1] = "{", model = '"m"', stream = "true" }, scan(body))
        assert.equal(2, starts[1])
        assert.equal(#body - 1, stops[1])
    end)

    it("finds nothing in an empty object", function()
        assert.same({ [1] = "{" }, scan("{ }"))
        assert.equal(3, stops[1])
    end)

    it("returns the raw bytes of values of every kind", function()
        for _, value in ipairs { '"a\\"b"', "-1.5e+3", "true", "null", "NaN", "[]", "{}",
                                 '[{"model":"}"},"]"]', '{"a":{"b":["\\\\"]}}', '""' } do
            assert.equal(value, scan('{"x":1,"model":\r\n' .. value .. '\t,"y":2}').model)
            assert.equal(value, scan('{"model":' .. value .. "}").model)
        end
    end)

    it("is not misled by decoys inside values", function()
        assert.equal("real", model('{"messages":[{"model":"decoy"}],'
            .. '"text":"\\",\\"model\\":\\"decoy\\"","model":"real","z":{"model":"decoy"}}'))
        assert.is_nil(model('{"x":{"model":"decoy"}}'))
    end)

    it("decodes escaped keys", function()
        assert.equal("m", model('{"\\u006dodel":"m"}'))
        assert.equal("m", model('{"mod\\u0065l":"m"}'))
        assert.is_nil(model('{"\\\\u006dodel":"m"}'))
    end)

    it("does not take an undecodable, long or different key for ours", function()
        assert.is_nil(model('{"model\\ud800":"m","Model":"m","model ":"m"}'))
        assert.is_nil(model('{"' .. rep("\\u006d", 1000) .. '":"m"}'))
        assert.is_nil(model('{"model\\u0000":"m"}'))
    end)

    it("counts backslashes before a quote", function()
        assert.equal("m", model('{"a":"\\\\","model":"m"}'))
        assert.equal("m", model('{"a":"\\\\\\"","model":"m"}'))
        assert.equal("invalid_json", refusal('{"a":"\\","model":"m"}'))
    end)

    it("refuses wanted keys that come twice, also when escaped", function()
        assert.equal("duplicate_key", refusal('{"model":"a","x":1,"model":"a"}'))
        assert.equal("duplicate_key", refusal('{"model":"a","\\u006dodel":"b"}'))
        assert.equal("a", model('{"x":1,"x":2,"model":"a"}'))
    end)

    it("refuses what is not one JSON object in UTF-8", function()
        for _, body in ipairs { "", " ", "[]", '"model"', "null", "1", "\239\187\191{}",
                                "\255\254{\0}\0", "{\0", "\0{" } do
            assert.equal("invalid_json", refusal(body))
        end
    end)

    it("refuses broken objects", function()
        for _, body in ipairs { "{", '{"', '{"a', '{"a"', '{"a":', '{"a":}', '{"a":1', '{"a":1,',
                                '{"a":1,}', "{,}", '{"a" 1}', '{"a":1 "b":2}', "{a:1}",
                                "{'a':1}", '{"a":1}}', '{"a":1}x', '{"a":[', '{"a":["', '{"a":"x',
                                '{"a":,"b":1}', '{"a":@}', '{"a":1}{"b":2}', '{"a":1}\0' } do
            assert.equal("invalid_json", refusal(body))
        end
    end)

    it("never reads the rest of a body cut short as a whole one", function()
        local body = '{"a":[1,{"b":"c\\"d"}],"model":"m","n":-1.5}'
        for length = 0, #body - 1 do
            assert.equal("invalid_json", refusal(body:sub(1, length)))
        end
        assert.equal("m", model(body))
    end)

    it("allows 256 keys and no more", function()
        assert.equal("m", model("{" .. rep('"k":1,', 255) .. '"model":"m"}'))
        assert.equal("too_many_keys", refusal("{" .. rep('"k":1,', 256) .. '"model":"m"}'))
    end)

    it("allows 512 levels and no more", function()
        local function nested(levels)
            return '{"a":' .. rep("[", levels - 1) .. rep("]", levels - 1) .. ',"model":"m"}'
        end
        assert.equal("m", model(nested(512)))
        assert.equal("too_deep", refusal(nested(513)))
        assert.equal("too_deep", refusal('{"a":' .. rep('{"a":', 600)))
    end)

    it("clears what the tables held before", function()
        scan('{"model":"m","user":"u"}')
        scan("{}")
        assert.is_nil(starts.model)
        assert.is_nil(stops.user)
    end)

    it("leaves no garbage behind", function()
        local body = '{"messages":[' .. rep('{"content":"hello"},', 5000) .. '1],"model":"m"}'
        for _ = 1, 100 do
            json_scan.scan(body, WANTED, starts, stops)
        end
        collectgarbage()
        collectgarbage("stop")
        local before = collectgarbage("count")
        for _ = 1, 100 do
            json_scan.scan(body, WANTED, starts, stops)
        end
        local per_scan = (collectgarbage("count") - before) / 100
        collectgarbage("restart")
        assert.is_true(per_scan < 1, per_scan .. " KB per scan")
    end)
end)


describe("json_scan.kind", function()
    it("tells by the first byte", function()
        local kinds = { ['"'] = "string", ["{"] = "object", ["["] = "array", ["0"] = "number",
                        ["9"] = "number", ["-"] = "number", t = "true", f = "false", n = "null",
                        N = "invalid", ["+"] = "invalid" }
        for text, kind in pairs(kinds) do
            assert.equal(kind, json_scan.kind(" " .. text, 2))
        end
        assert.equal("invalid", json_scan.kind("", 1))
    end)
end)


describe("json_scan.string_value", function()
    local function value(raw)
        return json_scan.string_value(raw, 1, #raw)
    end

    it("decodes strings", function()
        assert.equal("", value('""'))
        assert.equal("a/b", value('"a/b"'))
        assert.equal('a"\\/\n\0é', value('"a\\"\\\\\\/\\n\\u0000\\u00e9"'))
        assert.equal("\240\159\154\130", value('"\\ud83d\\ude82"'))
    end)

    it("gives nil for what is no string or does not decode", function()
        for _, raw in ipairs { "1", "null", '["a"]', '"', '"a', '"\\x"', '"\\ud800"', '"\\udc00"',
                               '"\\u12"', '"a\nb"', '"a\0b"' } do
            assert.is_nil(value(raw))
        end
    end)
end)


describe("json_scan.splice, shift and encode_string", function()
    it("replace values and insert members, given in any order", function()
        local body = '{"stream":true,"model":"alias","n":1}'
        scan(body)
        local first, last = starts.model, stops.model
        local edits = {
            { first = stops[1], last = stops[1] - 1, text = ',"x":2' },
            { first = first, last = last, text = json_scan.encode_string("real") },
            { first = starts.stream, last = stops.stream, text = "false" },
        }
        local changed = table.concat(json_scan.splice(body, edits))
        assert.equal('{"stream":false,"model":"real","n":1,"x":2}', changed)
        local moved = json_scan.shift(edits, first)
        assert.equal('"real"', changed:sub(first + moved, last + moved - 1))
        assert.equal(body, table.concat(json_scan.splice(body, {})))
    end)

    it("encode every byte so that it decodes to the same", function()
        assert.equal('"a/b"', json_scan.encode_string("a/b"))
        local all = {}
        for c = 0, 127 do
            all[#all + 1] = string.char(c)
        end
        local text = table.concat(all) .. "é"
        local encoded = json_scan.encode_string(text)
        assert.equal(text, json_scan.string_value(encoded, 1, #encoded))
    end)
end)


describe("json_scan.scan with keys whose last counts", function()
    it("takes the last, with its elements", function()
        local elements = { a = {} }
        assert.is_true(json_scan.scan('{"a": ["x", "y"], "n": 1, "a": ["z"], "n": 2}',
                                      { a = "last", n = "last" }, starts, stops, elements))
        assert.same({ 35, 1 }, { elements.a[1], elements.a.n })
        assert.equal(stops.n, starts.n)
        assert.is_true(starts.n > starts.a)
        assert.is_true(json_scan.scan('{"a": ["x", "y"], "a": 7}', { a = "last" }, starts, stops, elements))
        assert.equal(0, elements.a.n)
    end)
end)


describe("json_scan.scan with elements", function()
    local skip = require "edge.json_skip"
    local elements = { user = { n = 0 } }

    local function ends(value)
        local body = '{"x": [1], "user": ' .. value .. "}"
        local ok, _, code = json_scan.scan(body, WANTED, starts, stops, elements)
        if not ok then
            return code
        end
        assert.equal(value, body:sub(starts.user, stops.user))
        local found, from = {}, starts.user + 1
        for i = 1, elements.user.n do
            found[i] = body:sub(from, elements.user[i])
            from = elements.user[i] + 1
        end
        return found
    end

    it("notes where each ends", function()
        assert.same({ '{"a": "]"}', ' , {"b": [{}]}' }, ends('[{"a": "]"} , {"b": [{}]} ]'))
        assert.same({ '"a"', ',"\\"]"' }, ends('["a","\\"]"]'))
        assert.same({ " [1, 2]", ", []", ", 7", ", null" }, ends("[ [1, 2], [], 7, null]"))
    end)

    it("notes none in numbers, in an empty array, in anything else", function()
        for _, value in ipairs { "[1, 2, 3]", "[]", "[ ]", "{}", '"a"', "null", "12", "[null]" } do
            assert.same({}, ends(value))
        end
    end)

    it("notes no more than are of use", function()
        assert.equal(skip.MAX_ELEMENTS, #ends("[" .. rep("{},", 5000) .. "{}]"))
    end)

    it("refuses what is no array", function()
        for _, value in ipairs { "[{} {}]", "[{},]", "[{}", '["a"}', "[{}:{}]" } do
            assert.equal("invalid_json", ends(value))
        end
    end)

    it("counts levels as without them", function()
        local inner = skip.MAX_DEPTH - 2
        assert.equal(1, #ends("[" .. rep("[", inner) .. rep("]", inner) .. "]"))
        assert.equal("too_deep", ends("[" .. rep("[", inner + 1) .. rep("]", inner + 1) .. "]"))
    end)
end)
