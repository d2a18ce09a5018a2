-- Runs a body scanner over a file of documents, for the differential fuzz tests:
--   luajit tests/fuzz/drive.lua json|multipart|splice|stream INPUT OUTPUT      (from the repository's root)
-- INPUT holds length-prefixed strings (4 bytes, little-endian): one body per JSON document, a
-- Content-Type and a body per form. OUTPUT holds for each: the refusal's code ("" if none);
-- then, if none, for each wanted key the first and last offset in decimal ("" if absent), the
-- kind of the value, and the decoded value ("" if it is no string or does not decode).
-- The same for the question for usage: a body in; out the refusal's code, the body as the engine gets
-- it, and "1" if the edge asks. And for its answer: a stream and where it is cut into reads (decimals
-- with commas) in; out what passes, and the usage that was taken out.

package.path = "./lua/?.lua;" .. package.path

local ffi = require "ffi"
local json_scan = require "edge.json_scan"
local multipart = require "edge.multipart"
local usage_filter = require "edge.usage_filter"
local usage_splice = require "edge.usage_splice"

local KEYS = { "model", "stream" }
local WANTED = { model = true, stream = true }
-- Arrays of these are read element by element: where they end must be the same.
local ELEMENTS = { stream = { n = 0 } }

local format_name, input_path, output_path = arg[1], arg[2], arg[3]
local file = assert(io.open(input_path, "rb"))
local input = file:read("*a")
file:close()
local output = assert(io.open(output_path, "wb"))


local function put(text)
    output:write(ffi.string(ffi.new("uint32_t[1]", #text), 4), text)
end


local position = 1
local function take()
    local a, b, c, d = input:byte(position, position + 3)
    local first = position + 4
    position = first + a + b * 256 + c * 65536 + d * 16777216
    return input:sub(first, position - 1)
end


local starts, stops = {}, {}

local function scan_json()
    local body = take()
    local ok, _, code = json_scan.scan(body, WANTED, starts, stops, ELEMENTS)
    put(ok and "" or code)
    if not ok then
        return
    end
    assert(body:sub(starts[1], starts[1]) == "{" and body:sub(stops[1], stops[1]) == "}")
    for _, key in ipairs(KEYS) do
        local first, last = starts[key], stops[key]
        put(first and tostring(first - 1) or "")
        put(first and tostring(last - 1) or "")
        local value = first and json_scan.string_value(body, first, last)
        local kind = first and json_scan.kind(body, first) or ""
        put(kind == "string" and not value and "undecodable" or kind)
        put(value or "")
    end
end


local function scan_form()
    local content_type, body = take(), take()
    local boundary, fields, _, code
    boundary, _, code = multipart.boundary(content_type)
    if boundary then
        fields, _, code = multipart.find(function(offset, length)
            return body:sub(offset + 1, offset + length)
        end, #body, boundary, WANTED)
    end
    put(fields and "" or code)
    if not fields then
        return
    end
    for _, key in ipairs(KEYS) do
        local field = fields[key]
        put(field and tostring(field.first) or "")
        put(field and tostring(field.first + field.length - 1) or "")
        put(field and "string" or "")
        put(field and field.value or "")
    end
end


local SPLICED = { stream = true, stream_options = "last" }
local ROUTE = { usage_event = true }

local function splice()
    local body = take()
    local ok, _, code = json_scan.scan(body, SPLICED, starts, stops)
    local state = { route = ROUTE, count_usage = true }
    local edits
    if ok then
        usage_splice.note(state, body, starts, stops)
        edits = usage_splice.edits(state, body)
    end
    put(ok and "" or code)
    put(edits and table.concat(json_scan.splice(body, edits)) or body)
    put(state.asks_usage and "1" or "")
end


local function filter_stream()
    local text, cuts = take(), take()
    local filter, out, from = usage_filter.new(), {}, 1
    for cut in (cuts .. "," .. #text):gmatch("%d+") do
        out[#out + 1] = usage_filter.feed(filter, text:sub(from, tonumber(cut)))
        from = tonumber(cut) + 1
    end
    out[#out + 1] = usage_filter.flush(filter)
    put(table.concat(out))
    put(filter.usage or "")
end


-- Small windows make fields lie across their ends.
if format_name == "multipart" then
    multipart.WINDOW_BYTES = 128
end
local scan_one = ({ json = scan_json, multipart = scan_form, splice = splice, stream = filter_stream })[format_name]
while position <= #input do
    scan_one()
end
output:close()
