"""Speaks to a commander over HTTP and websocket, for the dashboard and the command line alike."""
