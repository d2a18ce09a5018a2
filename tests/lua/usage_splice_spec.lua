local cjson = require "cjson"
local json_scan = require "edge.json_scan"
local usage_splice = require "edge.usage_splice"

local WANTED = { stream = true, stream_options = "last" }


-- The body as the engine gets it, and whether the usage event is the edge's own.
local function ask(body, count_usage, usage_event)
    local starts, stops = {}, {}
    assert(json_scan.scan(body, WANTED, starts, stops))
    local state = {
        route = { usage_event = usage_event ~= false }, count_usage = count_usage ~= false,
        stream_last = false, options_first = false, options_last = false, asks_usage = false,
    }
    usage_splice.note(state, body, starts, stops)
    local edits = usage_splice.edits(state, body)
    assert.is_nil(usage_splice.edits(state, body))  -- once
    return edits and table.concat(json_scan.splice(body, edits)) or body, state.asks_usage
end


-- A stream with these options.
local function with(options)
    return '{"stream":true,"stream_options":' .. options .. "}"
end


local function unchanged(body, ...)
    local got, asks = ask(body, ...)
    assert.equal(body, got)
    assert.is_false(asks)
end


describe("usage_splice", function()
    it("asks when the client did not", function()
        for body, expected in pairs({
            ['{"stream":true}'] = with('{"include_usage":true}'),
            ['{"stream" : true , "n":1}']
                = '{"stream" : true,"stream_options":{"include_usage":true} , "n":1}',
            [with('null')] = with('{"include_usage":true}'),
            ['{"stream_options":{},"stream":true}']
                = '{"stream_options":{"include_usage":true},"stream":true}',
            ['{"stream_options":{ \n},"stream":true}']
                = '{"stream_options":{"include_usage":true \n},"stream":true}',
            ['{"stream_options":{"x":[1]},"stream":true}']
                = '{"stream_options":{"include_usage":true,"x":[1]},"stream":true}',
            ['{"stream_options":{"include_usage":false},"stream":true}']
                = '{"stream_options":{"include_usage":true},"stream":true}',
            ['{"stream_options":{"a":1,"include_usage" : null },"stream":true}']
                = '{"stream_options":{"a":1,"include_usage" : true },"stream":true}',
        }) do
            local got, asks = ask(body)
            assert.equal(expected, got)
            assert.is_true(asks)
            cjson.decode(got)
        end
    end)

    it("sees keys that are written with escapes", function()
        assert.equal('{"\\u0073tream":true,"stream\\u005foptions":{"include_usage":true}}',
                     (ask('{"\\u0073tream":true,"stream\\u005foptions":null}')))
        assert.equal(with('{"include\\u005fusage":true}'),
                     (ask(with('{"include\\u005fusage":false}'))))
        unchanged('{"stream":true,"stream\\u005foptions":{"\\u0069nclude_usage":true}}')
    end)

    it("leaves a client that asked alone", function()
        for _, value in ipairs({ "true", "1", "1.0", '"yes"', '"ON"', '"\\u0074rue"' }) do
            unchanged(with('{"include_usage":' .. value .. "}"))
        end
    end)

    it("asks where vLLM reads another value as false", function()
        for _, value in ipairs({ "0", "-0.0", '"off"', '"FALSE"', '"n"' }) do
            assert.equal(with('{"include_usage":true}'),
                         (ask(with('{"include_usage":' .. value .. "}"))))
        end
    end)

    it("asks for streams however they are asked for", function()
        for _, value in ipairs({ "1", "1e0", '"true"', '"Y"' }) do
            assert.equal('{"stream":' .. value .. ',"stream_options":{"include_usage":true}}',
                         (ask('{"stream":' .. value .. "}")))
        end
    end)

    it("leaves alone what is no stream, or no concern", function()
        for _, value in ipairs({ "false", "null", "0", "2", '"no"', '"maybe"', "[]", "{}", "NaN" }) do
            unchanged('{"stream":' .. value .. "}")
        end
        unchanged('{"n":1}')
        unchanged('{"n":1,"stream_options":null}')
        unchanged('{"stream":true}', false)
        unchanged('{"stream":true}', true, false)
    end)

    it("leaves to the engine what it will refuse", function()
        for _, value in ipairs({ '"x"', "[]", "1", "true", "NaN", "[{}]" }) do
            unchanged(with(value))
        end
        for _, value in ipairs({ "2", '"maybe"', '""', "[]", "{}" }) do
            unchanged(with('{"include_usage":' .. value .. "}"))
            unchanged(with('{"continuous_usage_stats":' .. value .. "}"))
        end
    end)

    it("does not let usage into every event where only continuous_usage_stats was set", function()
        assert.equal(with('{"include_usage":true,"continuous_usage_stats":false}'),
                     (ask(with('{"continuous_usage_stats":true}'))))
        assert.equal(with('{"continuous_usage_stats": false , "include_usage":true}'),
                     (ask(with('{"continuous_usage_stats": "on" , "include_usage":0}'))))
        assert.equal(with('{"include_usage":true,"continuous_usage_stats":null}'),
                     (ask(with('{"continuous_usage_stats":null}'))))
        unchanged(with('{"continuous_usage_stats":true,"include_usage":true}'))
    end)

    it("takes the last of two, as the engine does", function()
        assert.equal('{"stream_options":1,"stream":true,"stream_options":{"include_usage":true}}',
                     (ask('{"stream_options":1,"stream":true,"stream_options":null}')))
        assert.equal(with('{"include_usage":true,"include_usage":true}'),
                     (ask(with('{"include_usage":true,"include_usage":false}'))))
        unchanged(with('{"include_usage":false,"include_usage":true}'))
    end)

    it("leaves options with more keys than it reads", function()
        local keys = {}
        for i = 1, 300 do
            keys[i] = '"k' .. i .. '":1'
        end
        unchanged(with("{" .. table.concat(keys, ",") .. "}"))
    end)
end)
