"""The server: leases, reports, store (the only SQL), http and websockets, live feed. Knows no screen."""
