std = "ngx_lua"
max_line_length = 110
unused_args = false
files["tests/lua"] = { std = "+busted" }
