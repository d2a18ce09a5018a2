local multipart = require "edge.multipart"

local rep = string.rep

local WANTED = { model = true, stream = true }
local DISPOSITION = "Content-Disposition: form-data; "


local function part(name, value)
    return "--B\r\n" .. DISPOSITION .. 'name="' .. name .. '"\r\n\r\n' .. value .. "\r\n"
end


local function file(content)
    return "--B\r\n" .. DISPOSITION .. 'name="file"; filename="a.wav"\r\n'
           .. "Content-Type: audio/wav\r\n\r\n" .. content .. "\r\n"
end


-- Returns fields, or nil, message, code; and checks that no window is larger than promised.
local function find(body, boundary)
    return multipart.find(function(offset, length)
        assert.is_true(length <= multipart.WINDOW_BYTES)
        assert.is_true(offset >= 0 and offset + length <= #body)
        return body:sub(offset + 1, offset + length)
    end, #body, boundary or "B", WANTED)
end


local function model(body)
    local fields, err = find(body)
    assert.is_nil(err)
    local field = fields.model
    if field then
        assert.equal(field.value, body:sub(field.first + 1, field.first + field.length))
    end
    return field and field.value
end


local function refusal(body)
    local fields, err, code = find(body)
    assert.is_nil(fields)
    assert.is_string(err)
    return code
end


-- A form whose only part has these header lines and the value "m".
local function with_headers(headers)
    return "--B\r\n" .. headers .. "\r\n\r\nm\r\n--B--\r\n"
end


describe("multipart.boundary", function()
    it("reads bare and quoted boundaries", function()
        local cases = {
            ["multipart/form-data; boundary=abc"] = "abc",
            ['Multipart/Form-Data;boundary="a b"'] = "a b",
            ["multipart/form-data; boundary=----=_Part_1.2"] = "----=_Part_1.2",
            ["multipart/form-data; charset=UTF-8; Boundary=x;"] = "x",
            ["multipart/form-data; boundary=" .. rep("x", 70)] = rep("x", 70),
        }
        for content_type, boundary in pairs(cases) do
            assert.equal(boundary, multipart.boundary(content_type))
        end
    end)

    it("refuses what is missing, too long or ambiguous", function()
        for _, content_type in ipairs {
            "", "multipart/form-data", "multipart/form-data; boundary=",
            'multipart/form-data; boundary=""', 'multipart/form-data; boundary="a "',
            'multipart/form-data; boundary="a', 'multipart/form-data; boundary="a\\b"',
            "multipart/form-data; boundary=a; boundary=b", "multipart/mixed; boundary=a",
            "multipart/form-data; boundary*=utf-8''a; boundary=b", "application/json",
            "multipart/form-data; boundary=a b", "multipart/form-data; boundary=a\\b",
            "multipart/form-data; boundary=" .. rep("x", 71),
            "multipart/form-data; charset=utf-7; boundary=a",
            "multipart/form-data; boundary=a, multipart/form-data; boundary=b",
        } do
            local boundary, err, code = multipart.boundary(content_type)
            assert.is_nil(boundary, content_type)
            assert.is_string(err)
            assert.equal("invalid_multipart", code)
        end
    end)
end)


describe("multipart.find", function()
    it("finds wanted fields before and after a file", function()
        local body = part("stream", "true") .. part("x", "1") .. file("\0\r\n--A\r\n")
                     .. part("model", "whisper") .. "--B--\r\n"
        assert.equal("whisper", model(body))
        assert.equal("true", find(body).stream.value)
        assert.is_nil(find(body).x)
    end)

    it("takes empty values, no final line end, and a line end before the first boundary", function()
        assert.equal("", model("\r\n" .. part("model", "") .. "--B--"))
        assert.is_nil(model(file("") .. "--B--\r\n"))
    end)

    it("finds fields wherever a window ends", function()
        local edge = multipart.WINDOW_BYTES
        for size = edge - 12, edge + 12 do
            assert.equal("m", model(file(rep("x", size)) .. part("model", "m") .. "--B--"))
        end
        local head = #file("") - 2
        for size = 2 * edge - head - 60, 2 * edge - head + 10 do
            assert.equal("m", model(file(rep("\r", size)) .. part("model", "m") .. "--B--"))
        end
    end)

    it("takes the ways in which honest clients write headers", function()
        for _, headers in ipairs {
            'content-disposition:form-data;name="model"',
            "Content-Disposition: form-data; name=model",
            'Content-Disposition: Form-Data; NAME="model" ;',
            'Content-Type: text/plain; charset=UTF-8\r\n' .. DISPOSITION .. 'name="model"\r\n'
            .. "Content-Transfer-Encoding: 8bit\r\nContent-Length: 1",
        } do
            assert.equal("m", model(with_headers(headers)))
        end
        for _, filename in ipairs { 'filename="a;\\"b.wav"', 'filename="C:\\x.wav"',
                                    "filename=a.wav", 'filename=""',
                                    "filename=\"a\"; filename*=UTF-8''a%20b" } do
            local body = with_headers(DISPOSITION .. 'name="file"; ' .. filename)
            assert.is_nil(model(body))
            assert.equal("m", model(part("model", "m") .. body))
        end
    end)

    it("refuses wanted fields that are files or encoded", function()
        for _, headers in ipairs {
            'name="model"; filename="a"', 'name="model"; filename=""',
            "name=\"model\"; filename*=UTF-8''a", 'name="model"; x=y',
            'name="model"\r\nContent-Transfer-Encoding: base64',
        } do
            assert.equal("invalid_multipart", refusal(with_headers(DISPOSITION .. headers)))
        end
    end)

    it("refuses names that can be read in two ways", function()
        for _, headers in ipairs {
            'name="mode\\l"', "name*=utf-8''model", "name=x; name*=utf-8''model", 'name*0="model"',
            'name="x"; name="model"', 'name="model', "name=model\"", "name=mo del", "name =model",
            'name="model"x', "filename=a", 'x="\\\\"; name="model"', "", "name", "name=",
            'name="x"\r\n' .. DISPOSITION .. 'name="model"', 'name="x"\n' .. DISPOSITION,
            'name="x";\r\n name="model"', 'name="model"\r\nX', 'name="model"\r\nX : y',
            'name="y"; x="\\\\"', 'name="y"; x="a\nb"',
            'name="model"\0', 'name="model"\r', "name=\"model\"\r\n: x",
        } do
            assert.equal("invalid_multipart", refusal(with_headers(DISPOSITION .. headers)))
        end
        for _, headers in ipairs {
            "", "X: y", 'Content-Disposition: attachment; name="model"',
            'Content-Disposition : form-data; name="model"',
            " " .. DISPOSITION .. 'name="model"',
        } do
            assert.equal("invalid_multipart", refusal(with_headers(headers)))
        end
    end)

    it("refuses bodies whose boundaries can be read in two ways", function()
        local good = part("model", "m") .. "--B--\r\n"
        assert.equal("m", model(good))
        for _, body in ipairs {
            "", "--B", "--B\r\n", "--B--\r\n" .. good, "preamble\r\n" .. good, good .. good,
            good .. "epilogue", good:gsub("\r\n", "\n"), part("model", "m"),
            part("model", "m") .. "--B-", part("model", "m") .. "--B \r\n" .. part("x", "1"),
            part("model", "m\r\n--Bx") .. "--B--", part("model", "--B--"), "\n" .. good,
            "--B\r\n\r\nm\r\n--B--",
        } do
            assert.equal("invalid_multipart", refusal(body))
        end
        for length = 0, #good - 3 do
            assert.equal("invalid_multipart", refusal(good:sub(1, length)))
        end
    end)

    it("refuses fields that come twice", function()
        assert.equal("duplicate_key",
                     refusal(part("model", "m") .. file("x") .. part("model", "m") .. "--B--"))
        assert.equal("m", model(part("x", "1") .. part("x", "2") .. part("model", "m") .. "--B--"))
    end)

    it("holds its limits", function()
        assert.equal(rep("m", 512), model(part("model", rep("m", 512)) .. "--B--"))
        assert.equal("value_too_long", refusal(part("model", rep("m", 513)) .. "--B--"))
        assert.equal("m", model(rep(part("x", "1"), 63) .. part("model", "m") .. "--B--"))
        assert.equal("too_many_parts", refusal(rep(part("x", "1"), 64) .. part("model", "m")
                                               .. "--B--"))
        local fixed = #(DISPOSITION .. 'name="model"\r\nX: ')
        local function long(bytes)
            return with_headers(DISPOSITION .. 'name="model"\r\nX: ' .. rep("x", bytes - fixed - 4))
        end
        assert.equal("m", model(long(8192)))
        assert.equal("invalid_multipart", refusal(long(8193)))
    end)

    it("refuses values that are not UTF-8", function()
        assert.equal("m\195\169\240\159\154\130", model(part("model", "m\195\169\240\159\154\130")
                                                        .. "--B--"))
        for _, value in ipairs { "\255", "\195", "\192\128", "\237\160\128", "\244\144\128\128",
                                 "a\128" } do
            assert.equal("invalid_multipart", refusal(part("model", value) .. "--B--"))
        end
    end)

    it("raises when the body cannot be read", function()
        assert.has_error(function()
            multipart.find(function() return nil, "disk gone" end, 10, "B", WANTED)
        end)
        assert.has_error(function()
            multipart.find(function() return "--B\r\n" end, 1000, "B", WANTED)
        end)
    end)
end)
