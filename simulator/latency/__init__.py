"""How long a step takes. Read in this order: base (the contract), linear, roofline, profile, profile_file."""
