"""SlimPajama: web text of seven sources."""
