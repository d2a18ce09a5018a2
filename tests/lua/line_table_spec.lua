local line_table = require "edge.line_table"


describe("line_table", function()
    it("gives requests that only some backends can take lines of their own", function()
        local model = { id = "m" }
        assert.equal("model/m", line_table.name({ model = model }))
        assert.equal("backend/b-1", line_table.name({ model = model, pinned = "b-1" }))
        assert.equal("adapter/lora/m", line_table.name({ model = model, reported = true, name = "lora" }))
        assert.equal("pool/fast/model/m", line_table.name({ model = model, rule = { pool = "fast" } }))
    end)

    it("has a list for each class, and a place for other edges' tickets only where there are some", function()
        local alone, shared = line_table.build("m", "model/m", false), line_table.build("m", "model/m", true)
        assert.equal(3, #alone)
        assert.is_false(alone[1].others)
        assert.equal("others:model/m:2", shared[2].others)
        assert.equal(2, shared[2].number)
        assert.not_equal(shared[1].first, shared[2].first)
    end)
end)
