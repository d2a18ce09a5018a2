"""The edge seen from outside: rendered, tested, started, reloaded, asked."""
