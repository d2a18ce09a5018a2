local resp = require "edge.resp"


-- A socket that has `text` to read.
local function socket_of(text)
    local at = 1
    return {
        receive = function(_, size)
            if size then
                if at + size - 1 > #text then
                    return nil, "closed"
                end
                at = at + size
                return text:sub(at - size, at - 1)
            end
            local last = text:find("\r\n", at, true)
            if not last then
                return nil, "closed"
            end
            local line = text:sub(at, last - 1)
            at = last + 2
            return line
        end,
    }
end


describe("resp", function()
    it("writes commands with the lengths of their words in bytes", function()
        assert.equal("*3\r\n$3\r\nSET\r\n$2\r\n\195\164\r\n$2\r\n10\r\n",
                     table.concat(resp.encode({ "SET", "\195\164", 10 })))
    end)

    it("reads every kind of reply", function()
        assert.equal("PONG", resp.read(socket_of("+PONG\r\n")))
        assert.equal(-7, resp.read(socket_of(":-7\r\n")))
        assert.equal("a\r\nb", resp.read(socket_of("$4\r\na\r\nb\r\n")))
        assert.equal("", resp.read(socket_of("$0\r\n\r\n")))
        assert.is_false(resp.read(socket_of("$-1\r\n")))
        assert.is_false(resp.read(socket_of("*-1\r\n")))
        local list = socket_of("*4\r\n:1\r\n$1\r\nx\r\n$-1\r\n*1\r\n+y\r\n")
        assert.same({ 1, "x", false, { "y" } }, resp.read(list))
    end)

    it("tells Redis' own errors from broken connections", function()
        local value, err, refused = resp.read(socket_of("-NOSCRIPT no such script\r\n"))
        assert.same({ nil, "NOSCRIPT no such script", true }, { value, err, refused })
        for _, cut in ipairs({ "", "+PON", "$5\r\nab", "*2\r\n:1\r\n" }) do
            value, err, refused = resp.read(socket_of(cut))
            assert.is_nil(value)
            assert.equal("closed", err)
            assert.is_nil(refused)
        end
    end)

    it("refuses what is no reply", function()
        for _, line in ipairs({ "HTTP/1.1 400 Bad Request", "$99999999999", "*100001", "$x", "" }) do
            local value, err = resp.read(socket_of(line .. "\r\n"))
            assert.is_nil(value)
            assert.equal("this is not Redis' protocol", err)
        end
    end)
end)
