"""One module per page: what it shows of a snapshot, as parts of HTML that the stream can renew one by one."""
