local retry_budget = require "edge.retry_budget"


local function spend_all(budget, now)
    local spent = 0
    while retry_budget.spend(budget, now) do
        spent = spent + 1
    end
    return spent
end


describe("the retry budget", function()
    it("lets a burst go on, then nothing", function()
        local budget = retry_budget.new(1000)
        assert.equal(100, spend_all(budget, 1000))
        assert.is_false(retry_budget.spend(budget, 1000))
    end)

    it("grows by a fifth of the requests", function()
        local budget = retry_budget.new(1000)
        spend_all(budget, 1000)
        for _ = 1, 200 do
            retry_budget.earn(budget)
        end
        assert.is_true(math.abs(spend_all(budget, 1000) - 40) <= 1)
    end)

    it("grows by ten a second, so that a quiet model may always try", function()
        local budget = retry_budget.new(1000)
        spend_all(budget, 1000)
        assert.equal(20, spend_all(budget, 1002))
    end)

    it("never saves up more than the burst", function()
        local budget = retry_budget.new(1000)
        for _ = 1, 10000 do
            retry_budget.earn(budget)
        end
        assert.equal(100, spend_all(budget, 5000))
    end)
end)
