"""What the commander does: leases, reports, orders, workers, live feed. Clock and store are injected."""
