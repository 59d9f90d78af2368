"""Routes and websockets: the edge where input is checked and answers get their codes."""
