"""SSH tunnels to engines that listen on loopback of another machine."""
