local limit_rules = require "edge.limit_rules"


local function names(rules)
    local found = {}
    for i, rule in ipairs(rules) do
        found[i] = rule.kind .. " " .. (rule.unit or "places") .. " " .. rule.limit .. " " .. rule.who
    end
    return found
end


describe("limit_rules", function()
    it("has none where nothing is limited", function()
        assert.is_nil(limit_rules.build(nil, "m", nil, 1))
        assert.is_nil(limit_rules.build({ name = "alice" }, "m", {}, 1))
        local elsewhere = { models = { other = { concurrent = 1 } } }
        assert.is_nil(limit_rules.build({ name = "alice", limits = elsewhere }, "m", nil, 1))
    end)

    it("asks the key, the key on this model, and the model; places before rates before budgets", function()
        local key = {
            name = "alice",
            limits = {
                tokens_per_day = 5, requests_per_minute = 60, concurrent = 2,
                models = { m = { requests_per_minute = 10 } },
            },
        }
        local rules = limit_rules.build(key, "m", { tokens_per_minute = 1000 }, 1)
        assert.same({
            "concurrent places 2 the key 'alice'",
            "rate requests 60 the key 'alice'",
            "budget tokens 5 the key 'alice'",
            "rate requests 10 the key 'alice' on model 'm'",
            "rate tokens 1000 model 'm'",
        }, names(rules))
        assert.is_true(rules.tokens)
        assert.equal(1, rules[2].each)
    end)

    it("says whether tokens count", function()
        assert.is_falsy(limit_rules.build(nil, "m", { requests_per_minute = 1, concurrent = 1 }, 1).tokens)
        assert.is_true(limit_rules.build(nil, "m", { tokens_per_month = 1 }, 1).tokens)
    end)

    it("counts each scope under a name of its own", function()
        local seen = {}
        local one = { requests_per_minute = 1 }
        local key = { name = "m", limits = { requests_per_minute = 1, models = { m = one } } }
        for _, rule in ipairs(limit_rules.build(key, "m", one, 1)) do
            assert.is_nil(seen[rule.name])
            seen[rule.name] = true
        end
    end)
end)
