local kv = require "edge.kv"


local MANY = 10000


local function learned(usage, size, estimated, sequences)
    local part
    for _ = 1, 200 do
        part = kv.learn(part, usage, size, estimated, sequences or MANY)
    end
    return part
end


describe("the KV budget", function()
    it("begins with what was estimated", function()
        assert.equal(1, kv.learn(nil, nil, 1000, 0, 0))
        assert.equal(950, kv.budget(1000, 1))
    end)

    it("gives more when requests share their beginnings: less is used than was estimated", function()
        -- 8,000 estimated, 2,000 used: four times as many fit, less what they may grow.
        local part = learned(0.2, 10000, 8000)
        assert.is_true(math.abs(part - 0.3125) < 0.01)
        assert.is_true(kv.budget(10000, part) > 25000)
    end)

    it("is careful while few run: they may all be near their end at once", function()
        assert.equal(1, learned(0.6, 2000, 2000, 4))
        assert.is_true(learned(0.6, 200000, 200000, 400) < 0.8)
    end)

    it("never gives less than the estimate, nor twenty times as much", function()
        assert.equal(1, learned(1, 10000, 5000))
        assert.is_true(kv.budget(10000, learned(0, 10000, 10000)) <= 9500 * 20 + 1)
    end)

    it("learns nothing from an engine that is nearly idle, or says nothing", function()
        assert.equal(0.5, kv.learn(0.5, 0.001, 10000, 100, MANY))
        assert.equal(0.5, kv.learn(0.5, nil, 10000, 9000, MANY))
    end)

    it("moves step by step: one odd measurement is no new truth", function()
        assert.is_true(kv.learn(1, 0, 10000, 9000, MANY) > 0.9)
    end)

    it("believes at once that more is used", function()
        assert.equal(1, kv.learn(0.3, 0.9, 10000, 9000, MANY))
        assert.is_true(math.abs(kv.learn(0.3, 0.36, 10000, 9000, MANY) - 0.505) < 0.01)
    end)

    it("gives less after a preemption, whatever is used now", function()
        assert.is_true(math.abs(kv.learn(0.4, 0, 10000, 9000, MANY, true) - 0.6) < 1e-9)
        assert.equal(1, kv.learn(0.9, nil, 10000, 0, 0, true))
    end)
end)
