"""How messages reach the parties: on this machine, from recordings, or over NVFlare."""
