"""Pure rules: data in, decision out. No file, clock, network, Paddle or Prefect is reachable from here."""
