"""Ordered migrations: `relay/NNNN_*.sql` and `telemetry/NNNN_*.sql`, each applied once, in one transaction."""
