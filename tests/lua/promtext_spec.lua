local promtext = require "edge.promtext"


describe("labels", function()
    it("writes pairs in the order given", function()
        assert.equal('{model="org/m",code="200"}', promtext.labels("model", "org/m", "code", "200"))
    end)

    it("escapes backslash, quote and newline", function()
        assert.equal([[{a="x\\y\"z\n"}]], promtext.labels("a", 'x\\y"z\n'))
    end)

    it("is empty for none", function()
        assert.equal("", promtext.labels())
    end)
end)


describe("number", function()
    it("writes integers without a point and keeps fractions", function()
        assert.equal("0", promtext.number(0))
        assert.equal("1234567890123", promtext.number(1234567890123))
        assert.equal("0.005", promtext.number(0.005))
        assert.equal("-2.5", promtext.number(-2.5))
        assert.equal("1796004896.081", promtext.number(1796004896.081))
    end)
end)


describe("histogram", function()
    it("accumulates buckets and ends with +Inf, sum and count", function()
        local out = {}
        promtext.histogram(out, "h", { "model", "m" }, { 0.1, 1 }, { 2, nil, 3 }, 7.5)
        assert.equal(table.concat({
            'h_bucket{model="m",le="0.1"} 2\n',
            'h_bucket{model="m",le="1"} 2\n',
            'h_bucket{model="m",le="+Inf"} 5\n',
            'h_sum{model="m"} 7.5\n',
            'h_count{model="m"} 5\n',
        }), table.concat(out))
    end)

    it("leaves the caller's labels alone", function()
        local labels = { "model", "m" }
        promtext.histogram({}, "h", labels, { 1 }, {}, 0)
        assert.same({ "model", "m" }, labels)
    end)
end)
